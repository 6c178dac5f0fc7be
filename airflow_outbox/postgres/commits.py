"""Commits that a job makes once over all its tries: its transaction enters them under an id."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.records import Ticket


@dataclass(frozen=True, slots=True)
class CommitId:
    """The id of a job, and the version of its commit: together they commit once."""

    app_id: str
    version: int

    def __str__(self) -> str:
        return f"{self.app_id}, version {self.version}"


@dataclass(frozen=True, slots=True)
class EnteredCommit:
    """A commit that was made under an id: its ticket, and how many records."""

    ticket: Ticket
    records: int


def find_commit(connection: psycopg.Connection[Any], outbox: OutboxName, commit_id: CommitId) -> EnteredCommit | None:
    """The commit that was made under an id, if any. Raises PostgresError, OutboxMissingError."""
    row = Statements(connection, outbox).row("stash.earlier_commit", asdict(commit_id))
    if row is None:
        return None
    transaction_id, records, outbox_id, incarnation = row
    return EnteredCommit(Ticket(outbox_id, incarnation, int(transaction_id)), records)


def enter_commit(connection: psycopg.Connection[Any], outbox: OutboxName, commit_id: CommitId, *, records: int) -> bool:
    """Enter the caller's transaction under an id; whether nobody has committed under it before.

    Waits for a rival that is committing. Raises PostgresError, OutboxMissingError.
    """
    values = {**asdict(commit_id), "records": records}
    return Statements(connection, outbox).row("stash.commit_once", values) is not None
