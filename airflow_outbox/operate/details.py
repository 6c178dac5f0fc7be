"""All that the page of one outbox shows, by at most ten cheap statements."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.operate.overview import MANY, Overview, Shape, read_overview
from airflow_outbox.operate.status import (
    ClusterStatus,
    Holder,
    MemberStatus,
    ShardStatus,
    clusters_of,
    judged,
    read_members,
)
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.health_history import DAY, read_history
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.health_history import HistoryPoint
from airflow_outbox.values.positions import PositionsReport, SeenGroup, newest

HOUR: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """How far a shard is published: `watermark` is a snapshot of Postgres (None: nobody can tell), `topics` counts the
    records of this incarnation up to the batch.
    """

    shard: int
    delivery: str | None
    watermark: str | None
    batch: int
    topics: dict[str, int]
    published_at: datetime | None


@dataclass(frozen=True, slots=True)
class Details:
    """One outbox. `dead_rows` is a rough number; `leaders` and `shards` have an item for each shard. `members` are the
    processes that harvest it by itself.

    `shards_wanted` is how many somebody asks for (None: no change). `groups` are those that the replicator of positions
    saw that was heard last, first those that need somebody; of many, some.
    """

    overview: Overview
    outbox_id: UUID
    incarnation: int
    schema_version: int
    dead_rows: int
    shards_wanted: int | None
    leaders: tuple[ShardStatus, ...]
    shards: tuple[ShardProgress, ...]
    oldest_holder: Holder | None
    members: tuple[MemberStatus, ...] = ()
    groups: tuple[SeenGroup, ...] = ()

    @property
    def positions(self) -> PositionsReport | None:
        """The last word of a replicator of positions; None if there is none."""
        return newest(self.overview.facts.positions)

    @property
    def clusters(self) -> list[ClusterStatus]:
        """Several clusters, the primary first; nothing where there is one."""
        return clusters_of(self.overview.facts)

    @property
    def topics(self) -> list[tuple[str, int]]:
        """The topics, and how many records were published in each, the most first."""
        counts: Counter[str] = Counter()
        for shard in self.shards:
            counts.update(shard.topics)
        return counts.most_common()


@dataclass(frozen=True, slots=True)
class Past:
    """The last hour in steps of 10 s, and the last day in steps of 5 min. Steps in which nobody led are missing."""

    hour: tuple[HistoryPoint, ...]
    day: tuple[HistoryPoint, ...]


def read_details(connection: psycopg.Connection[Any], shape: Shape) -> Details:
    """Read them and change nothing: six statements, and one more where positions are replicated.

    Raises OutboxMissingError, PostgresError.
    """
    overview = read_overview(connection, shape, most=MANY)
    statements, name = Statements(connection, shape.name), shape.name
    with translated(name), connection.cursor(row_factory=class_row(ShardStatus)) as leaders:
        leading = tuple(leaders.execute(statements.composed("status.status")))
    with translated(name), connection.cursor(row_factory=class_row(ShardProgress)) as rows:
        shards = tuple(rows.execute(statements.composed("overview.shards")))
    table = statements.named_row("overview.table", {"outbox": name.text()})
    if table is None:
        raise OutboxMissingError(f"{name.text('state')} is empty. Run `airflow-outbox init`")
    holder = statements.row("status.oldest_holder")
    seen = statements.row("positions.groups") if overview.facts.positions else None
    return Details(
        overview=overview,
        **table._asdict(),
        leaders=tuple(judged(leading, overview.facts, overview.facts.thresholds)),
        shards=shards,
        oldest_holder=Holder(*holder) if holder else None,
        members=tuple(read_members(connection, name)),
        groups=tuple(SeenGroup.parse(each) for each in seen[0]) if seen else (),
    )


def read_past(connection: psycopg.Connection[Any], shape: Shape) -> Past:
    """Read the charts' points: two statements. Raises PostgresError."""
    return Past(
        hour=tuple(read_history(connection, shape.name, seconds=HOUR, step=10)),
        day=tuple(read_history(connection, shape.name, seconds=DAY, step=300)),
    )
