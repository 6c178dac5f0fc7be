"""The state of an outbox, from its fence rows and its backlog; and the requests of operators to its leaders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.operate.parked_requests import ParkedCounts, ParkedRequests
from airflow_outbox.operate.verdict import read_facts
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.verdict import Thresholds, Verdict, judge, standing_fault


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard as its leader last told; None where nobody has led. `silent_for` is in seconds, `rate` in records/s."""

    shard: int
    member: str | None
    view: UUID | None
    took_over_at: datetime | None
    silent_for: float | None
    published: int
    in_flight: int
    rate: float
    paused: bool
    last_error: str | None
    last_error_at: datetime | None

    def leads(self, session_timeout: float) -> bool:
        """Whether somebody leads the shard, and was heard from within the session timeout."""
        return self.member is not None and self.silent_for is not None and 0 <= self.silent_for <= session_timeout


@dataclass(frozen=True, slots=True)
class Holder:
    """A session, a prepared transaction or a replication slot that keeps Postgres from removing dead rows.

    `age` is in seconds, None for a slot; `pid` is None where no process belongs to it.
    """

    kind: str
    name: str
    pid: int | None
    age: float | None


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """An outbox as a whole: how many records wait, and how many seconds the oldest has waited; parked ones don't count.

    - `backlog` is exact up to a bound, above which `backlog_is_exact` is false; both are None if counting took too long
    - `dead_rows` is roughly how many purged rows Postgres still keeps
    - `oldest_holder` makes it keep them for longest (None: none that the role may see)
    - `doubt` says why nobody can tell what is published: harvesting is halted, or the database has another history than
      the harvested one (None: no doubt)
    """

    outbox: str
    verdict: Verdict
    outbox_id: UUID
    incarnation: int
    backlog: int | None
    backlog_is_exact: bool | None
    oldest_age: float | None
    dead_rows: int
    oldest_holder: Holder | None
    shards: list[ShardStatus]
    parked: ParkedCounts
    doubt: str | None


_DEFAULTS = Thresholds()


def read_status(
    connection: psycopg.Connection[Any], name: OutboxName, *, thresholds: Thresholds = _DEFAULTS
) -> OutboxStatus:
    """Read the status and change nothing.

    Raises OutboxMissingError, SchemaVersionError, PostgresError.
    """
    table = OutboxTable(connection, name)
    identity, name = table.identity(), table.name
    statements = Statements(connection, name)
    with translated(name), connection.cursor(row_factory=class_row(ShardStatus)) as cursor:
        shards = cursor.execute(statements.composed("status.status")).fetchall()
    facts = read_facts(connection, name)
    fault = standing_fault(facts, thresholds)
    if fault is not None:
        shards = [replace(shard, last_error=fault.error, last_error_at=fault.since) for shard in shards]
    [dead_rows] = statements.row("status.dead_rows", {"outbox": name.text()}) or (0,)
    holder = statements.row("status.oldest_holder")
    [doubt] = statements.row("tickets.doubt") or (None,)
    parked = ParkedRequests(connection, name).counts()
    return OutboxStatus(
        outbox=str(name),
        verdict=judge(facts, thresholds),
        outbox_id=identity.outbox_id,
        incarnation=identity.incarnation,
        backlog=facts.backlog.records if facts.backlog else None,
        backlog_is_exact=facts.backlog.is_exact if facts.backlog else None,
        oldest_age=facts.backlog.oldest_age if facts.backlog else None,
        dead_rows=dead_rows,
        oldest_holder=Holder(*holder) if holder else None,
        shards=shards,
        parked=parked,
        doubt=doubt,
    )


def ask_pause(connection: psycopg.Connection[Any], name: OutboxName, *, paused: bool) -> None:
    """Ask all leaders, future ones too, to mark nothing more, or to go on. Raises PostgresError."""
    Statements(connection, located(connection, name)).execute("status.ask_pause", {"paused": paused})


def ask_handover(connection: psycopg.Connection[Any], name: OutboxName, *, shard: int) -> ShardStatus:
    """Ask a shard's leader to let another member lead; return how the shard was doing.

    Raises OutboxMissingError, PostgresError.
    """
    Statements(connection, located(connection, name)).execute("status.ask_handover", {"shard": shard})
    found = [status for status in read_status(connection, name).shards if status.shard == shard]
    if not found:
        raise OutboxMissingError(f"{name} has no shard {shard}. `airflow-outbox status` shows its shards")
    return found[0]
