"""The commit of a Spark job: one Postgres transaction, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from airflow_outbox.errors import JobError, StagingLostError
from airflow_outbox.names import OutboxName
from airflow_outbox.records import Ticket
from airflow_outbox.spark.staging import StagedRows, Staging
from airflow_outbox.sql import statements
from airflow_outbox.table import Column, render, translated


@dataclass(frozen=True, slots=True)
class JobCommit:
    """What a job has committed: its ticket, how many records, and whether an earlier try of the same job did it."""

    ticket: Ticket
    records: int
    earlier: bool


@dataclass(frozen=True, slots=True)
class CommitId:
    """Who commits, and which commit of that job it is: together they commit once."""

    app_id: str
    version: int


def find_commit(connection: psycopg.Connection[Any], outbox: OutboxName, commit_id: CommitId) -> JobCommit | None:
    """What has been committed under an id, if anything. Raises PostgresError, OutboxMissingError."""
    values = {"app_id": commit_id.app_id, "version": commit_id.version}
    with translated(outbox):
        row = connection.execute(render(statements("queries.sql")["earlier_commit"], outbox), values).fetchone()
    if row is None:
        return None
    transaction_id, records, outbox_id, incarnation = row
    return JobCommit(Ticket(outbox_id, incarnation, int(transaction_id)), records, earlier=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The commit of staged rows: `job_statements` fill the business tables, `order_by` gives the events their order."""

    connection: psycopg.Connection[Any]
    outbox: OutboxName
    outbox_columns: dict[str, Column]
    commit_id: CommitId
    order_by: Sequence[str]
    job_statements: Sequence[str]

    def run(self, staging: Staging, rows: StagedRows) -> JobCommit:
        """Commit all or nothing, and once. Raises JobError, StagingLostError, PostgresError."""
        id_values = asdict(self.commit_id)
        with translated(self.outbox), self.connection.transaction():
            self._execute("spark.sql", "wait_for_rivals")
            self._execute("spark.sql", "claim_commit", id_values)
            if (earlier := find_commit(self.connection, self.outbox, self.commit_id)) is not None:
                return earlier
            self._execute(
                "spark.sql",
                "show_staged",
                staged_columns=staging.column_names,
                staging=staging.identifier,
                attempts=sql.Literal(list(rows.attempts)),
            )
            self._examine(rows)
            self._run_job_statements()
            self._stash(rows, with_partition="partition" in {column.name for column in staging.columns})
            self._execute("spark.sql", "hide_staged")
            entry = {**id_values, "records": rows.count}
            entered = self._execute("queries.sql", "commit_once", entry).fetchone()
            committed = find_commit(self.connection, self.outbox, self.commit_id)
            if entered is None or committed is None:
                raise JobError(f"{self.commit_id} is entered by another writer; nothing was committed. Use another id")
        return replace(committed, earlier=False)

    def _examine(self, rows: StagedRows) -> None:
        """Look before anything is written: a message that names the record is worth more than Postgres's own."""
        count = cast("tuple[int]", self._execute("spark.sql", "count_staged").fetchone())[0]
        if count != rows.count:
            raise StagingLostError(
                f"{self.outbox}: of {rows.count} staged rows {count} are there; nothing was committed. "
                "Postgres empties unlogged tables when it crashes. Run the job again"
            )
        limits = {f"{part}_limit": self.outbox_columns[f"kafka_{part}"].max_length for part in ("key", "value")}
        unfit = self._execute("spark.sql", "unfit_record", limits, order=self._order).fetchone()
        if unfit is not None:
            place, problem = unfit
            raise JobError(
                f"the record at {', '.join(self.order_by)} = {place}: {problem}; nothing was committed. "
                "Correct it in the job"
            )

    def _run_job_statements(self) -> None:
        for number, statement in enumerate(self.job_statements, start=1):
            try:
                # Binary makes it one statement a string: Postgres's simple protocol would take several.
                self.connection.cursor(binary=True).execute(cast("Any", statement))
            except psycopg.Error as error:
                reason = " ".join(str(error).split())
                raise JobError(
                    f"statement {number} of the job: {reason}; nothing was committed. Correct the statement"
                ) from error
            if self.connection.info.transaction_status != TransactionStatus.INTRANS:
                raise JobError(
                    f"statement {number} of the job has ended the transaction. Leave COMMIT and ROLLBACK out"
                )

    def _stash(self, rows: StagedRows, *, with_partition: bool) -> None:
        statement = "stash_staged_with_partition" if with_partition else "stash_staged"
        stashed = self._execute("spark.sql", statement, order=self._order).rowcount
        if stashed != rows.count:
            raise JobError(
                f"{self.outbox}: of {rows.count} staged records {stashed} were inserted; nothing was committed. "
                "Look for a trigger or rule that drops some"
            )

    @property
    def _order(self) -> sql.Composed:
        return sql.SQL(", ").join(sql.Identifier(column) for column in self.order_by)

    def _execute(
        self, file: str, statement: str, values: dict[str, Any] | None = None, **parts: sql.Composable
    ) -> psycopg.Cursor[Any]:
        return self.connection.execute(render(statements(file)[statement], self.outbox, **parts), values)
