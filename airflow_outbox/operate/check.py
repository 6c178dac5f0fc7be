"""Find what is missing or dangerous about an outbox, in Postgres and in Kafka, and say what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import psycopg
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import KafkaError, OutboxError, PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.errors import not_allowed
from airflow_outbox.harvest.kafka.names import KafkaNames, unusable
from airflow_outbox.operate.acls import DATA_TOPIC, Acl, needed_acls
from airflow_outbox.operate.brokers import examine_transactions
from airflow_outbox.operate.finding import Finding, Severity
from airflow_outbox.operate.parked_requests import ParkedRequests
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.columns import Column, read_columns
from airflow_outbox.postgres.connection import connect, located
from airflow_outbox.postgres.loaded_rows import is_guarded
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import GOHARVEST_COLUMNS
from airflow_outbox.postgres.soundness import problems
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable

_OLDEST_SERVER = 130000  # xid8 and pg_current_xact_id()
_HOMES = ("state", "shard", "ledger")
_TOPICS_LOOKED_AT = 1000
_TOPICS_NAMED = 3
_FITTING_TYPES = {
    "kafka_key": ("character varying", "text", "bytea"),
    "kafka_value": ("character varying", "text", "bytea"),
    "kafka_header_keys": ("text[]",),
    "kafka_header_values": ("text[]", "bytea[]"),
    "leader_id": ("uuid",),
}


def examine(config: HarvestConfig) -> list[Finding]:
    """Examine the outbox as the configured role sees it. Anything that can't be reached is a finding too."""
    findings: list[Finding] = []
    outbox_id, topics = None, set[str]()
    try:
        with closing(connect(config.data_source, purpose="check")) as connection:
            name = located(connection, config.name)
            findings += _examine_postgres(connection, name)
            if not config.wait_for_standbys:
                findings += _examine_standbys(connection, name)
            if not any(finding.severity is Severity.MISSING for finding in findings):
                outbox_id = OutboxTable(connection, name).identity().outbox_id
                findings += _examine_archive(connection, config) if config.archives else []
                topics = _pending_topics(connection, name)
                findings += _examine_parked(connection, name)
    except PostgresError as error:
        findings.append(Finding(Severity.MISSING, str(error)))
    try:
        findings += _examine_kafka(config, outbox_id, topics)
        if outbox_id is not None and config.delivery == "exactly_once":
            findings += examine_transactions(config)
    except KafkaError as error:
        findings.append(Finding(Severity.MISSING, str(error)))
    return findings


def acls(config: HarvestConfig, topics: Collection[str] = ()) -> list[Acl]:
    """The ACLs that the harvester needs for these data topics, and for the topics of records that wait now.

    It asks Postgres, not Kafka. Raises PostgresError.
    """
    with closing(connect(config.data_source, purpose="check")) as connection:
        table = OutboxTable(connection, config.name)
        identity = table.identity()
        wanted = {*topics, *_pending_topics(connection, table.name)} or {DATA_TOPIC}
    return needed_acls(config, KafkaNames.of(config, identity.outbox_id), wanted)


def _examine_postgres(connection: psycopg.Connection[Any], name: OutboxName) -> Iterator[Finding]:
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
    yield from _examine_columns(columns, name)
    try:
        OutboxTable(connection, name).identity()
    except OutboxError as error:
        yield Finding(missing, str(error))
        return
    for table, allowed in zip(("", *_HOMES), _ask_all(connection, "check.harvest_privileges", name), strict=True):
        if not allowed:
            role = connection.info.user
            yield Finding(
                missing,
                f"role {role} may not harvest from {name.text(table)}. Run `airflow-outbox grant --harvest {role}`",
            )
    for problem in problems(connection, name):
        yield Finding(missing, f"{problem}. Harvesting from it is not safe. Correct that as its owner, or drop it")
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
            "the database's encoding is SQL_ASCII: Postgres accepts text that is not UTF-8, and such a record can't "
            "be published. Use a database with the encoding UTF8",
        )
    if (cache := _ask(connection, "check.sequence_cache", name)) and cache > 1:
        yield Finding(
            dangerous,
            f"the ids of {name} come from a sequence with CACHE {cache}: sessions draw them out of order. "
            "Run ALTER SEQUENCE … CACHE 1",
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


def _examine_columns(columns: dict[str, Column] | Any, name: OutboxName) -> Iterator[Finding]:
    for column in sorted(GOHARVEST_COLUMNS - set(columns)):
        yield Finding(Severity.MISSING, f"{name} has no column {column}, so it is not an outbox. Correct outbox_table")
    for column, types in _FITTING_TYPES.items():
        if column in columns and columns[column].type not in types:
            yield Finding(
                Severity.MISSING, f"{name}.{column} is {columns[column].type}; it must be {' or '.join(types)}"
            )
    if "transaction_id" not in columns:
        yield Finding(
            Severity.DANGEROUS,
            f"{name} has no column transaction_id: a ticket can't be looked up in it. "
            "`airflow-outbox init --transaction-id` adds it",
        )


def _examine_kafka(config: HarvestConfig, outbox_id: UUID | None, pending: set[str]) -> Iterator[Finding]:
    cluster = Cluster(config.kafka)
    if outbox_id is None:
        cluster.reach()
        return
    names = KafkaNames.of(config, outbox_id)
    own = {names.leader_topic, *([names.ledger_topic] if config.delivery == "exactly_once" else [])}
    topics = cluster.topics({*own, *pending})
    answers = {("topic", topic): answer for topic, answer in topics.items()}
    answers["group", names.leader_group_id] = cluster.group(names.leader_group_id)
    for acl in needed_acls(config, names, pending):
        if acl.resource == "transactional-id":
            continue  # any question to Kafka about it would fence a leader
        if acl.purpose == "harvest" and acl.missing(answers[acl.resource, acl.name]):
            yield Finding(Severity.MISSING, not_allowed(acl.operation, acl.resource, acl.name))
    for topic, answer in sorted(topics.items()):
        if isinstance(answer, BrokerError):
            yield from _examine_missing_topic(config, topic, answer, awaited=topic in pending)
        elif min((len(partition.replicas) for partition in answer.partitions), default=0) < 2:
            yield Finding(
                Severity.DANGEROUS, f"topic {topic} has one replica: losing that broker loses its records. Give it more"
            )
    there = sorted(topic for topic, answer in topics.items() if not isinstance(answer, BrokerError))
    for topic, settings in cluster.topic_settings(there).items():
        yield from _examine_topic_settings(topic, settings, is_ledger=topic == names.ledger_topic)


def _examine_missing_topic(
    config: HarvestConfig, topic: str, error: BrokerError, *, awaited: bool
) -> Iterator[Finding]:
    if error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
        return  # the list of permissions has said it
    if awaited and error.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
        yield Finding(Severity.MISSING, f"records wait for topic {topic}, which does not exist. Create it")
    else:
        yield Finding(Severity.MISSING, unusable(topic, error, config))


def _examine_topic_settings(topic: str, settings: Any, *, is_ledger: bool) -> Iterator[Finding]:
    if isinstance(settings, BrokerError):
        reason = settings.str()
        if settings.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            reason = not_allowed("DESCRIBE_CONFIGS", "topic", topic)
        yield Finding(Severity.DANGEROUS, f"the safety of topic {topic} is not known: {reason}")
        return
    values = {name: entry.value for name, entry in settings.items()}
    if values.get("min.insync.replicas") == "1":
        yield Finding(
            Severity.DANGEROUS,
            f"topic {topic} has min.insync.replicas=1: losing one broker can lose acknowledged records. Set it to 2",
        )
    if is_ledger and values.get("cleanup.policy") != "compact":
        yield Finding(
            Severity.DANGEROUS,
            f"topic {topic}, the ledger, has cleanup.policy={values.get('cleanup.policy')}: Kafka deletes after a "
            "while what tells the next leader which records are published. Set it to compact",
        )
    if values.get("unclean.leader.election.enable") == "true":
        yield Finding(
            Severity.DANGEROUS,
            f"topic {topic} allows unclean leader election: acknowledged records can be lost. "
            "Set unclean.leader.election.enable to false",
        )


def _pending_topics(connection: psycopg.Connection[Any], name: OutboxName) -> set[str]:
    rows = Statements(connection, name).rows("check.pending_topics", {"limit": _TOPICS_LOOKED_AT})
    return {topic for (topic,) in rows}


def _ask(connection: psycopg.Connection[Any], statement: str, name: OutboxName) -> Any:
    return _ask_all(connection, statement, name)[0]


def _ask_all(connection: psycopg.Connection[Any], statement: str, name: OutboxName) -> tuple[Any, ...]:
    values = {"outbox": name.text(), **{table: name.text(table) for table in _HOMES}}
    return cast("tuple[Any, ...]", Statements(connection, name).row(statement, values) or (None,))
