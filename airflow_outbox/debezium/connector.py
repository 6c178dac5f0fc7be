"""A connector's configuration, beside its event router: its table, its publication, its slot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_outbox.debezium.finding import DebeziumFinding, differs, note, refused
from airflow_outbox.debezium.router import Router, translated

POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"
DEFAULT_SLOT = "debezium"
DEFAULT_PUBLICATION = "dbz_publication"
HEARTBEAT = "heartbeat.interval.ms"
PARTITIONER = "producer.override.partitioner.class"

_TABLE = re.compile(r'[\w$"]+(?:\\?\.[\w$"]+)?')
_CHANGES_VALUES = (
    "column.mask.",
    "column.truncate.",
    "column.exclude.",
    "column.blacklist",
    "column.include.",
    "column.whitelist",
)
_READ = ("converters", "skipped.operations", "topic.creation.", "provide.transaction.metadata", "errors.tolerance")
_ELSEWHERE = (
    "binary.handling.mode", "config.", "connection.", "connector.class", "custom.metric.tags", "database.",
    "decimal.handling.mode", "errors.", "event.processing.failure.handling.mode", "exactly.once.support",
    "executor.", "extended.headers.enabled", "field.name.adjustment.mode", "flush.lsn.source", "header.converter",
    "heartbeat.", "hstore.handling.mode", "include.unknown.datatypes", "incremental.", "internal.",
    "interval.handling.mode", "key.converter", "lsn.", "max.", "message.key.columns", "message.prefix.",
    "money.fraction.digits", "name", "notification.", "offset", "openlineage.", "plugin.", "poll.", "predicates",
    "producer.override.", "publication.", "publish.via.", "query.fetch.size", "read.only", "replica.identity.",
    "retriable.", "retry.", "schema.", "signal.", "skip.messages.without.change", "slot.", "snapshot.", "source",
    "status.update", "streaming.", "table.include.list", "table.whitelist", "tasks.max", "time.precision.mode",
    "toasted.value.placeholder", "tombstones.on.delete", "topic.", "transaction.boundary", "transforms",
    "unavailable.value.placeholder", "value.converter", "xmin.",
)  # fmt: skip
"""Settings that decide nothing that a consumer sees, or are read elsewhere."""


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector as far as it can be translated. `publication` is None where its plug-in has none."""

    router: Router
    tables: Sequence[str]
    publication: str | None
    slot: str
    settings: Mapping[str, str]
    """Those that decide what a consumer sees, where the table is, and what Debezium reads it by."""


def read_connector(
    settings: Mapping[str, str], *, table: str | None = None
) -> tuple[Connector | None, list[DebeziumFinding]]:
    """Return the connector of these settings, and what has to be said of them. `table` replaces those they name."""
    router, findings = translated(settings)
    findings += _beside(settings)
    if router is None:
        return None, findings
    listed = settings.get("table.include.list", settings.get("table.whitelist", "")) if table is None else ""
    tables = [each.strip() for each in listed.split(",") if each.strip()]
    findings += [
        refused(f"table.include.list: {each!r} is a pattern, and not a table's name. Give --table")
        for each in tables
        if not _TABLE.fullmatch(each)
    ]
    named = [each.replace("\\.", ".") for each in tables if _TABLE.fullmatch(each)] if table is None else [table]
    if table is not None and "." not in table and router.predicate is not None:
        findings.append(refused(f"--table {table}: the router's predicate goes by the schema, too. Give schema.table"))
    routed = [each for each in named if router.predicate is None or router.predicate.passes(each)]
    findings += _left_out(router, named, routed)
    has_publication = settings.get("plugin.name", "pgoutput") == "pgoutput"
    connector = Connector(
        router,
        routed,
        settings.get("publication.name", DEFAULT_PUBLICATION) if has_publication else None,
        settings.get("slot.name", DEFAULT_SLOT),
        {name: value for name, value in settings.items() if _is_kept(name)},
    )
    return connector, findings


def _left_out(router: Router, named: Sequence[str], routed: Sequence[str]) -> Iterator[DebeziumFinding]:
    """Name the tables whose rows do not pass the router's predicate."""
    if router.predicate is None or len(routed) == len(named):
        return
    others = ", ".join(each for each in named if each not in routed)
    text = f"the router's predicate {router.predicate.name} does not let the rows of {others} pass"
    yield note(f"{text}, so that they are not stashed") if routed else refused(f"{text}. Name the outbox table")


def _is_kept(name: str) -> bool:
    kept = (
        "transforms",
        "predicates",
        "key.converter",
        "value.converter",
        "header.converter",
        "binary.",
        "decimal.",
        "time.",
    )
    return name.startswith(kept) or name in {
        "connector.class",
        "topic.prefix",
        "database.server.name",
        "publication.name",
        "publication.autocreate.mode",
        HEARTBEAT,
        "slot.name",
        "plugin.name",
        PARTITIONER,
    }


def _beside(settings: Mapping[str, str]) -> Iterator[DebeziumFinding]:
    kind = settings.get("connector.class", POSTGRES)
    if kind not in (POSTGRES, "PostgresConnector", "PostgreSQL"):
        yield refused(f"connector.class: {kind} is not Debezium's connector for Postgres, and its settings differ")
    for name in sorted(settings):
        if name.startswith(_CHANGES_VALUES):
            yield refused(
                f"{name} changes what is read of the table. Leave it out, if it is about other columns; otherwise "
                "write what it makes"
            )
        elif not name.startswith((*_ELSEWHERE, *_READ)):
            yield note(f"{name} is not known here, and left out. See whether consumers depend on it")
    if settings.get("extended.headers.enabled", "true") == "true":
        yield differs(
            "extended.headers.enabled: the headers __debezium.context.*, which newer connectors add, are not sent. "
            "They tell of the connector and its run"
        )
    if settings.get("converters"):
        yield refused("converters: custom converters of columns are not translated. Write what they make")
    if "c" in settings.get("skipped.operations", "t").lower().split(","):
        yield refused("skipped.operations: inserts are skipped, so that nothing is published")
    for name in ("schema.name.adjustment.mode", "field.name.adjustment.mode"):
        if settings.get(name, "none") != "none":
            yield refused(f"{name}: names are not adjusted. Leave it out, or use names that need no adjustment")
    if settings.get("provide.transaction.metadata", "false") == "true":
        yield differs(
            "provide.transaction.metadata: the topic of transactions is not written. transaction_headers in the "
            "outbox's configuration tells consumers of transactions (see docs/reference/configuration.md)"
        )
    if (
        any(name.startswith("topic.creation.") for name in settings)
        and settings.get("topic.creation.enable") != "false"
    ):
        yield differs("topic.creation: topics are not made here. Make them, or let the brokers do it")
    if settings.get("errors.tolerance") == "all":
        yield differs("errors.tolerance: a record that Kafka refuses is parked, with its key's later ones, not lost")
    yield from _cut_over(settings)


def _cut_over(settings: Mapping[str, str]) -> Iterator[DebeziumFinding]:
    if settings.get("plugin.name", "pgoutput") != "pgoutput":
        yield note(
            f"plugin.name: {settings['plugin.name']} has no publication, so that Debezium can't be told where to stop. "
            "Stop the writers, let it drain, and stop it, before `airflow-outbox debezium init`"
        )
    elif (mode := settings.get("publication.autocreate.mode", "all_tables")) != "disabled":
        yield note(
            f"publication.autocreate.mode is {mode}: a connector that starts again may put the table back into its "
            "publication, and would then publish what is published here. Set it to disabled before "
            "`airflow-outbox debezium init`"
        )
    if settings.get(HEARTBEAT, "0") == "0":
        yield note(
            f"{HEARTBEAT} is not set, and without heartbeats Debezium does not confirm its last rows. Set it to 1000 "
            "before `airflow-outbox debezium init`, so that `check` sees when all of them are published"
        )
