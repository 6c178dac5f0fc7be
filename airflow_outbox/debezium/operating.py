"""Operators examine a Debezium outbox table, switch it over, and go back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from airflow_outbox.debezium.connector import PARTITIONER, Connector, read_connector
from airflow_outbox.debezium.finding import DebeziumFinding, DebeziumSeverity, dangerous, differs, note, refused
from airflow_outbox.debezium.publication import (
    MOST_COUNTED,
    Publication,
    count_unread,
    put_back,
    read_publication,
    read_slot,
    take_out,
)
from airflow_outbox.debezium.rendering import Rendered, render
from airflow_outbox.debezium.table import SourceTable, read_table
from airflow_outbox.debezium.trigger import Installed, OutboxPlace, body_of, drop, find_outbox, installed, make
from airflow_outbox.errors import ConfigurationError, PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.partitioner import DEFAULT_PARTITIONER
from airflow_outbox.postgres.columns import read_columns
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements

_INIT = "`airflow-outbox debezium init`"


@dataclass(frozen=True, slots=True)
class Examined:
    """A table as it was examined: what there is to say of it, and whether its trigger is there."""

    table: str
    findings: Sequence[DebeziumFinding]
    has_trigger: bool


@dataclass(frozen=True, slots=True)
class _Planned:
    """All that a trigger is made of."""

    connector: Connector
    table: SourceTable
    rendered: Rendered | None
    present: Installed | None
    findings: Sequence[DebeziumFinding]


def examine(
    connection: psycopg.Connection[Any],
    config: HarvestConfig,
    *,
    settings: Mapping[str, str] | None,
    table: str | None,
) -> list[Examined]:
    """Find what would be lost, doubled or different, of each table. The connection must be in autocommit.

    `settings` are a connector's; None: examine the triggers that are there. `table` names one, and may be left out
    where the settings name one. Raises ConfigurationError, OutboxMissingError, PostgresError.
    """
    place = find_outbox(connection, config.name)
    found = []
    for planned in _plans(connection, config, place, settings, table):
        findings = [*planned.findings, *_of_configuration(config, planned.connector)]
        findings += _of_table(planned, place, is_installed=settings is None)
        findings += _of_debezium(connection, place, planned)
        found.append(Examined(str(planned.table.name), findings, planned.present is not None))
    return found


def switch(
    connection: psycopg.Connection[Any],
    config: HarvestConfig,
    *,
    settings: Mapping[str, str] | None,
    table: str | None,
    wait: float,
    keeps_published: bool = False,
) -> tuple[list[str], list[DebeziumFinding]]:
    """Make the triggers, and take the tables out of Debezium's publication, in one transaction.

    Rows of earlier transactions are Debezium's; later ones are stashed. Nothing is done where all is there. It waits
    at most `wait` seconds for transactions that write to a table. `keeps_published` leaves the publication alone: both
    publish then, as for a comparison. Returns what was done, in words, and what has to be said. Raises
    ConfigurationError, with all that refuses it; OutboxMissingError, PostgresError.
    """
    place = find_outbox(connection, config.name)
    plans = list(_plans(connection, config, place, settings, table))
    findings: list[DebeziumFinding] = []
    for planned in plans:
        findings += [*planned.findings, *_of_configuration(config, planned.connector)]
    if reasons := [finding.text for finding in findings if finding.severity is DebeziumSeverity.REFUSED]:
        raise ConfigurationError("nothing was changed:\n" + "\n".join(f"- {reason}" for reason in reasons))
    done: list[str] = []
    with translated(place.name), connection.transaction():
        for planned in plans:
            done += _switch(connection, place, planned, wait=wait, keeps_published=keeps_published)
    return done, findings


def _switch(
    connection: psycopg.Connection[Any], place: OutboxPlace, planned: _Planned, *, wait: float, keeps_published: bool
) -> Iterator[str]:
    assert planned.rendered is not None  # whatever refuses it is a finding
    connector, table, present = planned.connector, planned.table, planned.present
    publication = None
    if connector.publication is not None and not keeps_published:
        publication = read_publication(connection, place.name, connector.publication, table.name)
    leaves = publication is not None and publication.has_table
    left = connector.publication if leaves else present.publication if present else None
    is_same = present is not None and present.is_on and present.is_own
    is_same = is_same and present.body == body_of(place, planned.rendered)  # type: ignore[union-attr]
    is_same = is_same and present.settings == connector.settings and present.publication == left  # type: ignore[union-attr]
    if is_same and not leaves:
        return
    if leaves or present is None or not present.is_on:
        _lock(connection, place, table.name, wait=wait)
    make(
        connection,
        place,
        table,
        planned.rendered,
        settings=connector.settings,
        publication=left,
        present=present,
    )
    if present is None:
        yield f"{table.name}: rows are stashed into {place.name} from now on"
    elif not is_same:
        yield f"{table.name}: brought the trigger up to date"
    if publication is not None and leaves:
        take_out(connection, place.name, publication, table.name)
        yield (
            f"took {table.name} out of publication {publication.name}: Debezium publishes the rows before, and no "
            "others. Keep harvesting paused until `airflow-outbox debezium check` says that it has done so"
        )


def go_back(
    connection: psycopg.Connection[Any],
    config: HarvestConfig,
    *,
    table: str | None,
    wait: float,
    stays_out: bool = False,
) -> list[str]:
    """Take the triggers away, and put the tables back into the publications that they were taken out of.

    All in one transaction: later rows are Debezium's again. `stays_out` leaves the publications alone. `table` None
    means all. Returns what was done, in words. Raises ConfigurationError, OutboxMissingError, PostgresError.
    """
    place = find_outbox(connection, config.name)
    present = installed(connection, place)
    meant = _chosen(connection, place, present, table)
    done = []
    with translated(place.name), connection.transaction():
        for found in meant:
            _lock(connection, place, found.table, wait=wait)
            drop(connection, place, found, is_last=len(present) == len(meant))
            done.append(f"{found.table}: rows are no longer stashed into {place.name}")
            if found.publication is None or stays_out:
                continue
            publication = read_publication(connection, place.name, found.publication, found.table)
            if publication is None:
                raise ConfigurationError(
                    f"publication {found.publication}, which {found.table} was taken out of, is gone. Make it again, "
                    "or give --stay-out when Debezium is not to read the table. Nothing was changed"
                )
            if not publication.has_table:
                put_back(connection, place.name, found.publication, found.table)
            done.append(f"put {found.table} back into publication {found.publication}: Debezium publishes later rows")
    return done


def _chosen(
    connection: psycopg.Connection[Any], place: OutboxPlace, present: Sequence[Installed], table: str | None
) -> Sequence[Installed]:
    if table is None:
        return present
    wanted = read_table(connection, table, place.name).name
    chosen = [found for found in present if (found.table.schema, found.table.table) == (wanted.schema, wanted.table)]
    if present and not chosen:
        raise ConfigurationError(
            f"rows of {wanted} are not stashed into {place.name}, but those of "
            f"{' and '.join(str(found.table) for found in present)} are. Name one of them by --table"
        )
    return chosen


def _lock(connection: psycopg.Connection[Any], place: OutboxPlace, table: OutboxName, *, wait: float) -> None:
    statements = Statements(connection, place.name, source=table.beside(""))
    statements.execute("debezium.lock_timeout", {"timeout": f"{max(1, round(wait * 1000))}ms"})
    try:
        connection.execute(statements.composed("debezium.lock"))
    except psycopg.errors.LockNotAvailable as error:
        raise PostgresError(
            f"a transaction that writes to {table} has not ended within {wait:g} s. Nothing was changed, and "
            "writers go on. Try again, with a longer --wait, or when no long transaction runs"
        ) from error


def _plans(
    connection: psycopg.Connection[Any],
    config: HarvestConfig,
    place: OutboxPlace,
    settings: Mapping[str, str] | None,
    table: str | None,
) -> Iterator[_Planned]:
    present = installed(connection, place)
    if settings is None:
        meant = _chosen(connection, place, present, table)
        if not meant:
            raise ConfigurationError(
                f"no table is stashed into {config.name}. Give --connector with Debezium's configuration"
            )
        for found in meant:
            yield _plan(connection, place, found.settings, found.table.text(), present)
        return
    connector, findings = read_connector(settings, table=table)
    reasons = [finding.text for finding in findings if finding.severity is DebeziumSeverity.REFUSED]
    if connector is None:
        raise ConfigurationError("\n".join(reasons))
    if not connector.tables:
        missing = "the connector names no table (table.include.list). Give --table schema.table"
        raise ConfigurationError("\n".join(reasons or [missing]))
    for name in connector.tables:
        planned = _plan(connection, place, settings, name, present)
        of_list = [finding for finding in findings if finding not in planned.findings]
        yield replace(planned, findings=[*of_list, *planned.findings])
        findings = []


def _plan(
    connection: psycopg.Connection[Any],
    place: OutboxPlace,
    settings: Mapping[str, str],
    table: str,
    present: Sequence[Installed],
) -> _Planned:
    connector, findings = read_connector(settings, table=table)
    if connector is None:
        raise ConfigurationError(
            f"the trigger of {table} does not say what it was made of. Run {_INIT} with --connector again"
        )
    source = read_table(connection, table, place.name)
    if source.name.text() == place.name.text():
        raise ConfigurationError(
            f"{table} is the outbox itself. outbox_table names the table that is harvested, and --table the "
            "application's: give the outbox another name"
        )
    rendered, more = render(
        connector.router,
        source,
        read_columns(connection, place.name),
        may_lack_key=place.may_lack_key,
        escape=place.escape,
        expand=place.expand,
        expand_with_schema=place.expand_with_schema,
    )
    own = next((each for each in present if each.table.text() == source.name.text()), None)
    return _Planned(connector, source, rendered, own, [*findings, *more])


def _of_configuration(config: HarvestConfig, connector: Connector) -> Iterator[DebeziumFinding]:
    partitioner = {**config.kafka, **config.kafka_producer}.get("partitioner", DEFAULT_PARTITIONER)
    if partitioner not in ("murmur2", "murmur2_random"):
        yield differs(
            f"partitioner is {partitioner}, and Kafka Connect's is murmur2: keys go to other partitions than before. "
            "Set partitioner: murmur2_random"
        )
    if partitioner_class := connector.settings.get(PARTITIONER):
        yield differs(
            f"{PARTITIONER}: {partitioner_class} is not translated: keys go to the partitions of murmur2. Name the "
            "partition in a column (table.fields.additional.placement=<column>:partition)"
        )


def _of_table(planned: _Planned, place: OutboxPlace, *, is_installed: bool) -> Iterator[DebeziumFinding]:
    present, table = planned.present, planned.table
    if table.children:
        yield dangerous(
            f"{', '.join(table.children)} inherit from {table.name}: rows that are inserted into them are not stashed. "
            "Name them, too, with --table"
        )
    if present is None:
        yield note(f"{table.name} has no trigger yet: rows are not stashed. {_INIT} makes it")
        return
    if not present.is_on:
        yield dangerous(f"the trigger of {table.name} is not always on: rows are lost. Run {_INIT} again")
    if not present.is_own:
        yield dangerous(
            f"the function {present.function} does not belong to the owner of {place.name}, or does not run as its "
            f"owner: writers fail. Run {_INIT} again, as that owner"
        )
    if planned.rendered is not None and body_of(place, planned.rendered) != present.body:
        whose = "its columns have changed since" if is_installed else "the connector's settings are others"
        yield dangerous(f"the trigger of {table.name} is out of date: {whose}. Run {_INIT} again")


def _of_debezium(
    connection: psycopg.Connection[Any], place: OutboxPlace, planned: _Planned
) -> Iterator[DebeziumFinding]:
    connector, table = planned.connector, planned.table.name
    if connector.publication is None:
        return
    publication = read_publication(connection, place.name, connector.publication, table)
    slot = read_slot(connection, place.name, connector.slot)
    if publication is None or slot is None:
        missing = f"publication {connector.publication}" if publication is None else f"slot {connector.slot}"
        yield note(f"there is no {missing} here: Debezium does not read {table}")
        return
    if planned.present is None:
        yield from _of_publication(publication, table)
        return
    if publication.has_table:
        yield dangerous(
            f"publication {publication.name} has {table}, whose rows are stashed, too: they are published twice. Run "
            f"{_INIT} again, which takes it out, and set publication.autocreate.mode=disabled"
        )
    try:
        unread = count_unread(connection, place.name, slot.name, publication.name, table)
    except PostgresError as error:
        yield dangerous(
            f"how far Debezium has come can't be seen: {error}. The role needs REPLICATION, and a free slot"
        )
        return
    if unread:
        counted = f"more than {MOST_COUNTED - 1}" if unread == MOST_COUNTED else str(unread)
        reader = "" if slot.is_active else " Nobody reads the slot: start the connector"
        yield dangerous(
            f"Debezium has still to publish, or to confirm, {counted} rows of {table}. Keep harvesting paused until "
            f"then: later rows would overtake them.{reader}"
        )
    elif not slot.is_active:
        yield note(
            f"nobody reads slot {slot.name}, for which Postgres keeps {slot.kept_bytes} bytes of its log. Drop it, "
            "unless Debezium reads it again"
        )
    else:
        yield note(f"Debezium has published all of its rows of {table}, and reads on")


def _of_publication(publication: Publication, table: OutboxName) -> Iterator[DebeziumFinding]:
    if publication.has_table and not publication.names_table:
        yield refused(
            f"publication {publication.name} has {table} because it has all tables, or a whole schema: one alone can't "
            "be taken out. Give the connector a publication that names its tables"
        )
    elif publication.is_partial:
        yield refused(f"publication {publication.name} has only some columns or rows of {table}. Publish it whole")
