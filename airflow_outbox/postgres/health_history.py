"""The history of the last day: a row each ten seconds for each shard, written by whoever leads it.

The table is a ring, for each shard, with a slot for every ten seconds of a day. A row is written over after a day, and
never deleted. So the table stops growing after a day, and nothing has to be cleared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.health_history import HistoryPoint, ShardNote
from airflow_outbox.values.verdict import BY_GRAVITY, Backlog, State

DAY: Final = 86_400.0
STEP: Final = 10.0
"""Seconds that a row stands for."""


def note_history(connection: psycopg.Connection[Any], name: OutboxName, notes: Sequence[ShardNote]) -> float:
    """Note how shards are doing now, unless somebody has noted that in these ten seconds, or another leads them.

    Return after how many seconds to do so again. Raises PostgresError.
    """
    values = {
        "shards": [note.shard for note in notes],
        "members": [note.member for note in notes],
        "states": [note.state.value for note in notes],
        "backlogs": [note.backlog.records if note.backlog else None for note in notes],
        "are_exact": [note.backlog.is_exact if note.backlog else None for note in notes],
        "oldest_ages": [note.backlog.oldest_age if note.backlog else None for note in notes],
        "rates": [note.rate for note in notes],
        "latencies_p50": [note.latency_p50 for note in notes],
        "latencies_p99": [note.latency_p99 for note in notes],
    }
    [wait] = Statements(connection, located(connection, name)).row("health_history.note", values)
    return float(wait)


def read_history(
    connection: psycopg.Connection[Any],
    name: OutboxName,
    *,
    seconds: float = DAY,
    step: float = STEP,
    shard: int | None = None,
) -> list[HistoryPoint]:
    """Return how the outbox, or a shard of it, was doing in the last `seconds`, the oldest first: the worst of each
    `step`, the mean rate.

    A step in which nobody led is missing. Raises PostgresError.
    """
    name = located(connection, name)
    values = {
        "shard": shard,
        "seconds": seconds,
        "step": max(step, STEP),
        "gravity": [each.value for each in BY_GRAVITY],
    }
    query = Statements(connection, name).composed("health_history.read")
    with translated(name), connection.cursor(row_factory=dict_row) as cursor:
        return [_point(**row) for row in cursor.execute(query, values)]


def _point(
    *, state: str, backlog: int | None, backlog_is_exact: bool, oldest_age: float | None, **values: Any
) -> HistoryPoint:
    waiting = None if backlog is None else Backlog(backlog, backlog_is_exact, oldest_age)
    return HistoryPoint(state=State(state), backlog=waiting, **values)
