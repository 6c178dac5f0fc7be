"""The state of an outbox, from its fence rows and its backlog; and the requests of operators to its leaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.operate.parked_requests import ParkedCounts, ParkedRequests
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.layout import read_layout
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.trail import noted
from airflow_outbox.postgres.verdict_facts import read_facts
from airflow_outbox.values.judging import fault_of, judge, present_error
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.membership import Part
from airflow_outbox.values.positions import PositionsReport, newest
from airflow_outbox.values.verdict import UNDELETED, Backlog, Facts, Thresholds, Verdict


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """A shard as its leader last told; None where nobody has led. `silent_for` is in seconds, `rate` in records/s.

    `verdict` is its own, `backlog` what waits for its leader (None: not counted), `refused` its parked records that
    can't be published, counted up to a bound.
    """

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
    verdict: Verdict | None = None
    backlog: Backlog | None = None
    refused: int = 0

    def leads(self, session_timeout: float) -> bool:
        """Whether somebody leads the shard, and was heard from within the session timeout."""
        return self.member is not None and self.silent_for is not None and 0 <= self.silent_for <= session_timeout


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """One of several clusters: its part, since when it has it, and why, if somebody said; and how many batches fewer
    than any other it is known to have.

    `error` is why everything waits for it, and `held_since` since when (None: nothing does). `owed_since` is when the
    oldest batch was published that Postgres keeps for it (None: none is), and `is_wanted` says whether it is to be
    attached.
    """

    name: str
    part: Part
    since: datetime | None
    reason: str | None
    behind: int
    error: str | None
    held_since: datetime | None
    owed_since: datetime | None = None
    is_wanted: bool = False


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A process that harvests the outbox: its release, since when it is there, and which shards it leads.

    `silent_for` is how many seconds ago it was last heard from. `standing` is "silent" if that is too long, "leads", or
    "stands by".
    """

    member: str
    release: str
    started_at: datetime
    silent_for: float
    shards: list[int]
    standing: str = field(init=False)

    def __post_init__(self) -> None:
        is_silent = abs(self.silent_for) > _SILENCE
        object.__setattr__(self, "standing", "silent" if is_silent else "leads" if self.shards else "stands by")


@dataclass(frozen=True, slots=True)
class Leader:
    """The member that leads a shard, and its view; `member` is None where nobody leads."""

    member: str | None
    view: UUID | None


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
    - `layout` says how many shards there are, and are to be
    - `members` are the processes that harvest it, at most 100; without those that harvest many outboxes
    - `clusters` are the outbox's, the primary first (empty: there is one)
    - `positions` is what the replicator of positions saw that was heard last (None: there is none)
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
    layout: Layout = field(default_factory=Layout)
    clusters: list[ClusterStatus] = field(default_factory=list)
    positions: PositionsReport | None = None
    members: list[MemberStatus] = field(default_factory=list)


_DEFAULTS = Thresholds()
_SILENCE = 15.0
"""Seconds after which a member counts as silent. It tells every five that it is there."""


def read_status(
    connection: psycopg.Connection[Any], name: OutboxName, *, thresholds: Thresholds = _DEFAULTS
) -> OutboxStatus:
    """Read the status and change nothing.

    Raises OutboxMissingError, SchemaVersionError, PostgresError.
    """
    table = OutboxTable(connection, name)
    identity, name = table.identity(), table.name
    statements = Statements(connection, name)
    shards = read_shards(connection, name)
    facts = read_facts(connection, name)
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
        shards=judged(shards, facts, thresholds),
        parked=parked,
        doubt=doubt,
        layout=read_layout(connection, name),
        clusters=clusters_of(facts),
        positions=newest(facts.positions),
        members=read_members(connection, name),
    )


def read_shards(connection: psycopg.Connection[Any], name: OutboxName) -> list[ShardStatus]:
    """Read what the shards' leaders last told, in milliseconds, without verdict and backlog. Raises PostgresError."""
    name = located(connection, name)
    with translated(name), connection.cursor(row_factory=class_row(ShardStatus)) as cursor:
        return cursor.execute(Statements(connection, name).composed("status.status")).fetchall()


def read_members(connection: psycopg.Connection[Any], name: OutboxName) -> list[MemberStatus]:
    """Read which processes harvest the outbox, by one statement: leaders first, silent ones last. The outbox's name has
    its schema. Raises PostgresError.
    """
    with translated(name), connection.cursor(row_factory=class_row(MemberStatus)) as cursor:
        found = cursor.execute(Statements(connection, name).composed("member.list")).fetchall()
    return sorted(found, key=lambda each: (each.standing == "silent", each.standing != "leads", each.member))


def clusters_of(facts: Facts) -> list[ClusterStatus]:
    """Return how several clusters are doing; nothing where there is one."""
    found = []
    for cluster in facts.clusters:
        fault = fault_of(cluster.name, facts)
        error, since = (fault.error, fault.since) if fault else (None, None)
        found.append(
            ClusterStatus(
                name=cluster.name,
                part=cluster.part,
                since=cluster.since,
                reason=cluster.reason,
                behind=cluster.behind,
                error=error,
                held_since=since,
                owed_since=cluster.owed_since,
                is_wanted=cluster.is_wanted,
            )
        )
    return found


def judged(shards: Sequence[ShardStatus], facts: Facts, thresholds: Thresholds = _DEFAULTS) -> list[ShardStatus]:
    """Return the shards with what the facts say of each."""
    known = {each.shard or 0: each for each in facts.each}
    return [_judged(shard, known[shard.shard], thresholds) if shard.shard in known else shard for shard in shards]


def _judged(shard: ShardStatus, facts: Facts, thresholds: Thresholds) -> ShardStatus:
    fault, leads = present_error(facts, thresholds), facts.leads(thresholds)
    return replace(
        shard,
        in_flight=shard.in_flight if leads else 0,
        rate=facts.rate_now(thresholds),
        last_error=fault.error if fault else None,
        last_error_at=fault.since if fault else None,
        verdict=judge(facts, thresholds),
        backlog=facts.backlog,
        refused=sum(found.records for cause, found in facts.parked.items() if cause != UNDELETED),
    )


def ask_pause(
    connection: psycopg.Connection[Any], name: OutboxName, *, paused: bool, on_behalf_of: str | None = None
) -> None:
    """Ask all leaders, future ones too, to mark nothing more, or to go on. Raises PostgresError."""
    values = {"paused": paused, **noted(connection, "pause" if paused else "resume", on_behalf_of=on_behalf_of)}
    _request(connection, name, "status.ask_pause", values)


def ask_handover(
    connection: psycopg.Connection[Any], name: OutboxName, *, shard: int, on_behalf_of: str | None = None
) -> Leader:
    """Ask a shard's leader to let another member lead; return the present one.

    Raises OutboxMissingError, PostgresError.
    """
    note = noted(connection, "handover", on_behalf_of=on_behalf_of, matched=f"shard {shard}")
    row = _request(connection, name, "status.ask_handover", {"shard": shard, **note}).fetchone()
    if row is None:
        raise OutboxMissingError(f"{name} has no shard {shard}. `airflow-outbox status` shows its shards")
    return Leader(*row)


def _request(
    connection: psycopg.Connection[Any], name: OutboxName, statement: str, values: dict[str, Any]
) -> psycopg.Cursor[Any]:
    statements = Statements(connection, located(connection, name))
    return statements.execute(statement, values, noted=statements.composed("trail.noted"))
