"""The id under which a task commits once over all its tries, and the commit that it has made."""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.records import Ticket


def commit_id(task: Any) -> str:
    """The id under which a task instance commits: the same at every try of it, and no other task's."""
    return "/".join(["airflow", task.dag_id, task.run_id, task.task_id, str(task.map_index)])


def earlier_ticket(
    connection: psycopg.Connection[Any], outbox: OutboxName, *, app_id: str, version: int
) -> Ticket | None:
    """The ticket that was committed under an id, if any. Raises PostgresError, OutboxMissingError."""
    values = {"app_id": app_id, "version": version}
    row = Statements(connection, outbox).row("stash.earlier_commit", values)
    if row is None:
        return None
    transaction_id, _, outbox_id, incarnation = row
    return Ticket(outbox_id, incarnation, int(transaction_id))
