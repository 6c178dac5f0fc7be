"""Find what is missing or dangerous about an outbox, in Postgres and (`check_kafka`) in Kafka, and say what to do."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, cast

import psycopg

from airflow_outbox.errors import ConfigurationError, OutboxError, PostgresError
from airflow_outbox.harvest.assembly import impossible
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.operate.acls import DATA_TOPIC, Acl, needed_acls
from airflow_outbox.operate.check_kafka import examine_kafka
from airflow_outbox.operate.finding import Finding, Severity
from airflow_outbox.operate.parked_requests import ParkedRequests
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.cluster_rows import read_clusters, require_known
from airflow_outbox.postgres.columns import Column, lacks_transaction_ids, misfits, read_columns
from airflow_outbox.postgres.connection import connect, located
from airflow_outbox.postgres.layout import read_layout
from airflow_outbox.postgres.lock_holders import lock_holders
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import GOHARVEST_COLUMNS
from airflow_outbox.postgres.slots import missing_indexes
from airflow_outbox.postgres.soundness import KINDS, problems
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import Identity, OutboxTable
from airflow_outbox.postgres.transaction_id_trigger import is_guarded
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.moments import moment

_OLDEST_SERVER = 130000  # xid8 and pg_current_xact_id()
_WRITTEN = ("state", "shard", "ledger", "parked", "undeleted", "trouble", "member", "positions", "history")
_TOPICS_LOOKED_AT = 1000
_TOPICS_NAMED = 3
_LOCKED_FOR = 2.0
"""Seconds: the harvester's own statements hold locks for much less."""
_LETTING_GO = ("c", "n", "d")
"""Foreign keys that let a row be deleted: they delete the row that refers to it, set it null, or set its default."""


def examine(config: HarvestConfig, *, elects: bool = True) -> list[Finding]:
    """Examine the outbox as the configured role sees it. Anything that can't be reached is a finding too.

    An outbox of a list `elects` nobody: the list does.
    """
    findings: list[Finding] = []
    identity, topics, published, layouts = None, set[str](), set[str](), [Layout()]
    try:
        with closing(connect(config.data_source, purpose="check")) as connection:
            name = located(connection, config.name)
            findings += _examine_postgres(connection, name, delivery=config.delivery)
            if not config.wait_for_standbys:
                findings += _examine_standbys(connection, name)
            if not any(finding.severity is Severity.MISSING for finding in findings):
                identity = OutboxTable(connection, name).identity()
                findings += _examine_archive(connection, config) if config.archives else []
                topics = pending_topics(connection, name)
                published = _published_topics(connection, name) if config.positions.enabled else published
                layouts = _layouts(connection, name)
                findings += _examine_shards(connection, config, layouts)
                findings += _examine_clusters(connection, config)
                findings += _examine_parked(connection, name)
                findings += _examine_paused(connection, name)
    except (ConfigurationError, PostgresError) as error:
        findings.append(Finding(Severity.MISSING, str(error)))
    if identity is None:
        return [*findings, *examine_kafka(config, None, topics, layouts)]
    names, promotions = KafkaNames.of(config, identity.outbox_id), _promotions(config, identity)
    primary = identity.primary
    found = examine_kafka(config, names, topics, layouts, primary, promotions, published, elects=elects)
    return [*findings, *found]


def _promotions(config: HarvestConfig, identity: Identity) -> Sequence[int]:
    """The number of promotions of clusters up to now, and where there are several clusters after the next one."""
    return [identity.promotions, identity.promotions + 1] if config.clusters else [identity.promotions]


def acls(config: HarvestConfig, topics: Collection[str] = ()) -> Mapping[str, list[Acl]]:
    """The ACLs that the harvester needs for these data topics, and for the topics of records that wait now, by cluster.

    It may have as many shards as there are, as somebody asks for, or as the configuration says.

    It asks Postgres, not Kafka. Raises PostgresError.
    """
    with closing(connect(config.data_source, purpose="check")) as connection:
        table = OutboxTable(connection, config.name)
        identity = table.identity()
        wanted = {*topics, *pending_topics(connection, table.name)} or {DATA_TOPIC}
        layouts = _layouts(connection, table.name)
    if "shards" in config.model_fields_set and config.shards not in {layout.shards for layout in layouts}:
        layouts.append(Layout(layouts[-1].number + 1, config.shards))
    names = KafkaNames.of(config, identity.outbox_id)
    return {
        cluster: needed_acls(own, names, wanted, layouts=layouts, promotions=_promotions(config, identity))
        for cluster, own in config.by_cluster().items()
    }


def _examine_postgres(
    connection: psycopg.Connection[Any], name: OutboxName, *, delivery: str = "exactly_once"
) -> Iterator[Finding]:
    missing, dangerous = Severity.MISSING, Severity.DANGEROUS
    if connection.info.server_version < _OLDEST_SERVER:
        yield Finding(
            missing, f"the server is PostgreSQL {connection.info.server_version // 10000}. Upgrade it to 13 or newer"
        )
        return
    if _ask(connection, "connection.backend_pid", name) != connection.info.backend_pid:
        yield Finding(
            dangerous,
            "the connection goes through a pooler (PgBouncer?), which in transaction mode loses session settings. "
            "Give the harvester a direct connection",
        )
    columns = read_columns(connection, name)
    if not columns:
        yield Finding(missing, f"there is no table {name}. Run `airflow-outbox init`, or correct outbox_table")
        return
    yield from _examine_locks(connection, name)  # the next statements wait for some of them
    yield from _examine_columns(columns, name, delivery)
    try:
        OutboxTable(connection, name).identity()
    except OutboxError as error:
        yield Finding(missing, str(error))
        return
    for table, allowed in zip(("", *_WRITTEN), _ask_all(connection, "check.harvest_privileges", name), strict=True):
        if not allowed:
            role = connection.info.user
            yield Finding(
                missing,
                f"role {role} may not harvest from {name.text(table)}. Run `airflow-outbox grant --harvest {role}`",
            )
    for problem in problems(connection, name):
        yield Finding(missing, f"{problem}. Harvesting from it is not safe. Correct that as its owner, or drop it")
    yield from _examine_deletes(connection, name)
    if "transaction_id" in columns and not is_guarded(connection, name):
        yield Finding(
            dangerous,
            f"the trigger of {name} that gives loaded rows the id of the transaction that loads them is missing, or is "
            "not ENABLE ALWAYS: rows that are restored or copied into it may wait until another member leads. "
            "Run `airflow-outbox init`",
        )
    if _ask(connection, "check.encoding", name) == "SQL_ASCII":
        yield Finding(
            dangerous,
            "the database's encoding is SQL_ASCII: Postgres accepts text that is not UTF-8. Keys and values are "
            "published as they are; a record with such a topic or header name is parked. Use the encoding UTF8",
        )
    if (cache := _ask(connection, "check.sequence_cache", name)) and cache > 1:
        yield Finding(
            dangerous,
            f"the ids of {name} come from a sequence with CACHE {cache}: sessions draw them out of order. "
            "Run ALTER SEQUENCE … CACHE 1",
        )


def _examine_deletes(connection: psycopg.Connection[Any], name: OutboxName) -> Iterator[Finding]:
    """Find foreign keys and triggers that may keep Postgres from deleting a published record."""
    statements = Statements(connection, name)
    tables = {name.text(suffix): suffix for suffix in KINDS}
    for key, table, referred, action in statements.rows("check.foreign_keys", {"tables": list(tables)}):
        if suffix := tables[referred]:
            yield Finding(
                Severity.DANGEROUS,
                f"the foreign key {key} of table {table} refers to {name.text(suffix)}, whose rows come and go as "
                "harvesting needs it. Drop that foreign key",
            )
        elif action not in _LETTING_GO:
            yield Finding(
                Severity.DANGEROUS,
                f"the foreign key {key} of table {table} refers to {name}: a record that a row refers to is published, "
                "and can't be deleted. Make the foreign key ON DELETE SET NULL, or drop it",
            )
    for trigger, is_before_a_row in statements.rows("check.delete_triggers", {"outbox": name.text()}):
        yield Finding(
            Severity.DANGEROUS if is_before_a_row else Severity.NOTE,
            f"{name} has the trigger {trigger} on a delete: a record that it keeps, or for which it raises an error, "
            "is published and can't be deleted. Drop the trigger, or see to it that every delete goes through",
        )


def _examine_locks(connection: psycopg.Connection[Any], name: OutboxName) -> Iterator[Finding]:
    if not (found := lock_holders(connection, name)):
        return
    time.sleep(_LOCKED_FOR)
    for holder in set(found).intersection(lock_holders(connection, name)):
        yield Finding(
            Severity.DANGEROUS,
            f"{holder.who} holds locks of {holder.table}: the harvester waits for them. End that transaction",
        )


def _layouts(connection: psycopg.Connection[Any], name: OutboxName) -> list[Layout]:
    """The present layout, and the one that somebody asks for."""
    present = read_layout(connection, name)
    return [present] if present.wanted is None else [present, Layout(present.number + 1, present.wanted)]


def _examine_shards(
    connection: psycopg.Connection[Any], config: HarvestConfig, layouts: Sequence[Layout]
) -> Iterator[Finding]:
    most = max(layout.shards for layout in layouts)
    if most == 1:
        return
    for layout in layouts:
        if (reason := impossible(config, layout)) is not None:
            yield Finding(Severity.MISSING, reason)
    if missing := missing_indexes(connection, config.name):
        yield Finding(
            Severity.MISSING,
            f"{config.name} has {most} shards and no index by slot and {' and '.join(missing)}: a leader scans the "
            f"whole table for its records. `airflow-outbox reshard {most}` makes it",
        )


def _examine_clusters(connection: psycopg.Connection[Any], config: HarvestConfig) -> Iterator[Finding]:
    """The clusters that the configuration names have to be those of the outbox."""
    known, configured = read_clusters(connection, config.name), config.by_cluster()
    try:
        require_known(configured, known=known, name=config.name)
    except ConfigurationError as error:
        yield Finding(Severity.MISSING, str(error))
    if unknown := [cluster for cluster in known if cluster not in configured]:
        yield Finding(
            Severity.MISSING,
            f"{config.name} is published to cluster {' and '.join(unknown)}, which the configuration does not name. "
            "Add it to clusters",
        )


def _examine_standbys(connection: psycopg.Connection[Any], name: OutboxName) -> Iterator[Finding]:
    if standbys := _ask(connection, "check.synchronous_standbys", name):
        yield Finding(
            Severity.DANGEROUS,
            f"synchronous_standby_names is {standbys}, and wait_for_standbys is off: records that a fail-over loses "
            "may be in Kafka already. Turn wait_for_standbys on",
        )


def _examine_archive(connection: psycopg.Connection[Any], config: HarvestConfig) -> Iterator[Finding]:
    archive = Archive(connection, config.name)
    if not archive.exists:
        yield Finding(Severity.MISSING, f"there is no {config.name.text('archive')}. Run `airflow-outbox init`")
        return
    if datetime.now(UTC).date() + timedelta(days=1) not in archive.days():
        yield Finding(
            Severity.DANGEROUS,
            f"{config.name.text('archive')} has no partition for tomorrow. A leader that owns the archive creates one; "
            "otherwise run `airflow-outbox init` as its owner at least once a week",
        )
    if archive.default_records():
        yield Finding(
            Severity.DANGEROUS,
            f"records are in {config.name.text('archive_default')}, from which they are deleted row by row. "
            "Run `airflow-outbox init` as its owner at least once a week",
        )


def _examine_parked(connection: psycopg.Connection[Any], name: OutboxName) -> Iterator[Finding]:
    count, topics = ParkedRequests(connection, name).refused(topics=_TOPICS_NAMED)
    if count:
        named = ", ".join(topics) + (", ..." if len(topics) == _TOPICS_NAMED else "")
        yield Finding(
            Severity.DANGEROUS,
            f"{count} records of the topics {named} could not be published and are parked. Later records of their "
            "topics and keys wait behind them. `airflow-outbox parked list` shows why",
        )


def _examine_paused(connection: psycopg.Connection[Any], name: OutboxName) -> Iterator[Finding]:
    for (paused_at,) in Statements(connection, name).rows("check.paused"):
        since = "" if paused_at is None else f" since {moment(paused_at)}"
        yield Finding(
            Severity.DANGEROUS,
            f"{name} is paused{since}: what is stashed waits. `airflow-outbox resume` ends the pause",
        )


def _examine_columns(columns: Mapping[str, Column], name: OutboxName, delivery: str) -> Iterator[Finding]:
    for column in sorted(GOHARVEST_COLUMNS - set(columns)):
        yield Finding(Severity.MISSING, f"{name} has no column {column}, so it is not an outbox. Correct outbox_table")
    for misfit in misfits(columns):
        yield Finding(Severity.MISSING, f"{name}.{misfit}. Change the column's type")
    if "transaction_id" not in columns and delivery == "exactly_once":
        yield Finding(
            Severity.MISSING,
            f"{lacks_transaction_ids(name)}. Run `airflow-outbox init --transaction-id`, "
            "or set delivery: at_least_once",
        )
    elif "transaction_id" not in columns:
        yield Finding(
            Severity.DANGEROUS,
            f"{name} has no column transaction_id: a ticket can't be looked up in it. "
            "`airflow-outbox init --transaction-id` adds it",
        )


def pending_topics(connection: psycopg.Connection[Any], name: OutboxName) -> set[str]:
    """Return the topics that records wait for. Raises PostgresError."""
    rows = Statements(connection, name).rows("check.pending_topics", {"limit": _TOPICS_LOOKED_AT})
    return {topic for (topic,) in rows}


def _published_topics(connection: psycopg.Connection[Any], name: OutboxName) -> set[str]:
    rows = Statements(connection, name).rows("lineage.topics")
    return {topic for (topic,) in islice(rows, _TOPICS_LOOKED_AT)}


def _ask(connection: psycopg.Connection[Any], statement: str, name: OutboxName) -> Any:
    return _ask_all(connection, statement, name)[0]


def _ask_all(connection: psycopg.Connection[Any], statement: str, name: OutboxName) -> tuple[Any, ...]:
    values = {"outbox": name.text(), **{table: name.text(table) for table in _WRITTEN}}
    return cast("tuple[Any, ...]", Statements(connection, name).row(statement, values) or (None,))
