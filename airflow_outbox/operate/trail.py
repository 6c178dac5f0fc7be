"""The trail: what operators have asked for, when, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """One request.

    - `asked_by`: the role of the session in Postgres; `on_behalf_of`: whom it named (None: nobody)
    - `action`: `pause`, `resume`, `handover`, `retry`, `discard`, `purge`, `replay`, `adopt`, `reshard`, `rename`,
      `detach`, `attach` or `promote`
    - `matched`: what was meant, in words: records, a cluster, names; `records`: how many records those were (None: no
      records were meant)
    """

    number: int
    asked_at: datetime
    asked_by: str
    on_behalf_of: str | None
    action: str
    matched: str | None
    reason: str | None
    records: int | None


def read_trail(
    connection: psycopg.Connection[Any], name: OutboxName, *, before: int | None = None, limit: int = 100
) -> list[TrailEntry]:
    """Return the last requests, the newest first, or those before the one with this number. Raises PostgresError."""
    name = located(connection, name)
    with translated(name), connection.cursor(row_factory=class_row(TrailEntry)) as cursor:
        query = Statements(connection, name).composed("trail.read")
        return cursor.execute(query, {"before": before, "limit": limit}).fetchall()
