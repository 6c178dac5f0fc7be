"""The guard against rows loaded with their own transaction ids: a trigger, see `sql/loaded_rows.sql`."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.postgres.connection import render, translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.sql import statements


def guard_loaded_rows(connection: psycopg.Connection[Any], name: OutboxName) -> list[str]:
    """Make the trigger that gives loaded rows the id of the loading transaction, unless it is there and on.

    Returns what was done, in words. Raises PostgresError.
    """
    if is_guarded(connection, name):
        return []
    with translated(name):
        owner = connection.execute(_statement("owner", name), {"outbox": name.text()}).fetchone()
        if owner is None:
            raise OutboxMissingError(f"there is no table {name}. Run `airflow-outbox init`")
        connection.execute(_statement("guard", name, owner=sql.SQL(owner[0])))  # as Postgres gave it: already quoted
    return [f"created the trigger of {name} that gives loaded rows the id of the transaction that loads them"]


def is_guarded(connection: psycopg.Connection[Any], name: OutboxName) -> bool:
    """Whether that trigger is there and always on. Raises PostgresError."""
    with translated(name):
        values = {"outbox": name.text(), "loaded": name.text("loaded")}
        row = connection.execute(_statement("is_guarded", name), values).fetchone()
    return bool(row and row[0])


def _statement(statement: str, name: OutboxName, **parts: sql.Composable) -> sql.Composed:
    return render(statements("loaded_rows.sql")[statement], name, **parts)
