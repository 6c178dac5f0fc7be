"""The guard against rows loaded with their own transaction ids: a trigger, see `sql/transaction_id_trigger.sql`."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements


def guard_loaded_rows(connection: psycopg.Connection[Any], name: OutboxName) -> list[str]:
    """Make the trigger that gives loaded rows the id of the loading transaction, unless it is there and on. Let the
    next term find what was loaded without it.

    Returns what was done, in words. Raises PostgresError.
    """
    if is_guarded(connection, name):
        return []
    statements = Statements(connection, name)
    owner = statements.row("transaction_id_trigger.owner", {"outbox": name.text()})
    if owner is None:
        raise OutboxMissingError(f"there is no table {name}. Run `airflow-outbox init`")
    statements.execute("transaction_id_trigger.guard", owner=sql.SQL(owner[0]))  # as Postgres gave it: already quoted
    statements.execute("transaction_id_trigger.read_again")
    return [f"created the trigger of {name} that gives loaded rows the id of the transaction that loads them"]


def is_guarded(connection: psycopg.Connection[Any], name: OutboxName) -> bool:
    """Whether that trigger is there and always on. Raises PostgresError."""
    values = {"outbox": name.text(), "loaded": name.text("loaded")}
    row = Statements(connection, name).row("transaction_id_trigger.is_guarded", values)
    return bool(row and row[0])
