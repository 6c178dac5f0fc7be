"""The commit of a Spark write: one Postgres transaction, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import psycopg

from airflow_outbox.connection import render, translated
from airflow_outbox.errors import JobError
from airflow_outbox.names import OutboxName
from airflow_outbox.records import Ticket
from airflow_outbox.spark.layout import Layout
from airflow_outbox.spark.options import CommitId, WriteOptions
from airflow_outbox.spark.staging import Run, StagedRows
from airflow_outbox.spark.stashing import Statements, stash_rows, stash_text
from airflow_outbox.sql import statements


@dataclass(frozen=True, slots=True)
class JobCommit:
    """What a job has committed: its ticket, how many records, and whether an earlier try of the same job did it."""

    ticket: Ticket
    records: int
    earlier: bool


def find_commit(
    connection: psycopg.Connection[Any], outbox: OutboxName, commit_id: CommitId, *, is_stream: bool = False
) -> JobCommit | None:
    """What has been committed under an id, if anything; of a stream, under a later one, too.

    Raises PostgresError, OutboxMissingError.
    """
    text = statements("spark.sql")["committed_epoch"] if is_stream else statements("queries.sql")["earlier_commit"]
    with translated(outbox):
        row = connection.execute(render(text, outbox), asdict(commit_id)).fetchone()
    if row is None:
        return None
    transaction_id, records, outbox_id, incarnation = row
    return JobCommit(Ticket(outbox_id, incarnation, int(transaction_id)), records, earlier=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The commit of what the accepted task attempts have staged."""

    connection: psycopg.Connection[Any]
    run: Run
    layout: Layout
    options: WriteOptions

    def commit(self, staged: Sequence[StagedRows]) -> JobCommit:
        """Commit all or nothing, and once; `staged` is in the order of the partitions.

        Raises JobError, StagingLostError, PostgresError.
        """
        outbox, commit_id = self.run.outbox, self.run.commit_id
        at = Statements(connection=self.connection, run=self.run)
        with translated(outbox), self.connection.transaction():
            at.execute("begin_commit")
            at.execute("claim_commit", asdict(commit_id))
            if (earlier := self._find()) is not None:
                return earlier
            if self.layout.is_text:
                count = stash_text(at, self.layout, staged)
            else:
                count = stash_rows(at, self.layout, staged, self.options)
            entry = {**asdict(commit_id), "records": count}
            text = statements("queries.sql")["commit_once"]
            entered = self.connection.execute(render(text, outbox), entry).fetchone()
            committed = self._find()
            if entered is None or committed is None:
                raise JobError(f"{commit_id} is entered by another writer; nothing was committed. Use another id")
        return replace(committed, earlier=False)

    def _find(self) -> JobCommit | None:
        return find_commit(self.connection, self.run.outbox, self.run.commit_id, is_stream=self.run.is_stream)
