"""The rows that the facts about an outbox stand in."""

from __future__ import annotations

from typing import Any

import psycopg

HOMES = ("outbox_state", "outbox_shard", "outbox_ledger")


def row(connection: psycopg.Connection[Any], statement: str) -> dict[str, Any]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        [found] = cursor.execute(statement.encode()).fetchall()
        return found


def homes(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """All facts, by column; copies are those of the shard."""
    return {key: value for table in HOMES for key, value in row(connection, f"SELECT * FROM {table}").items()}
