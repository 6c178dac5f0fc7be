"""The commit of a Spark write: one Postgres transaction, once."""

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
from airflow_outbox.spark.layout import Layout
from airflow_outbox.spark.options import CommitId, WriteOptions
from airflow_outbox.spark.staging import Run, StagedRows, column_names, typed_columns
from airflow_outbox.sql import statements
from airflow_outbox.table import is_gone, render, translated


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
        with translated(outbox), self.connection.transaction():
            self._execute("begin_commit")
            self._execute("claim_commit", asdict(commit_id))
            if (earlier := self._find()) is not None:
                return earlier
            tables = self._show(staged)
            self._run_statements()
            count = sum(rows.count for rows in staged)
            self._stash(tables, count)
            self._execute("hide_staged")
            entry = {**asdict(commit_id), "records": count}
            text = statements("queries.sql")["commit_once"]
            entered = self.connection.execute(render(text, outbox), entry).fetchone()
            committed = self._find()
            if entered is None or committed is None:
                raise JobError(f"{commit_id} is entered by another writer; nothing was committed. Use another id")
        return replace(committed, earlier=False)

    def _find(self) -> JobCommit | None:
        return find_commit(self.connection, self.run.outbox, self.run.commit_id, is_stream=self.run.is_stream)

    def _show(self, staged: Sequence[StagedRows]) -> list[sql.Composed]:
        """Make the view `staged`; returns the parts it consists of, in the order of the partitions."""
        tables: list[sql.Identifier] = []
        inline: list[bytes] = []

        def hold_inline() -> None:
            if inline or not tables:
                tables.append(self._hold(inline, number=len(tables)))
                inline.clear()

        for rows in staged:
            inline.extend(rows.inline)
            if rows.table is not None:
                hold_inline() if inline else None
                tables.append(sql.Identifier(self.run.schema, rows.table))
        hold_inline()
        columns = self._columns()
        parts = [self._render("select_staged", columns=columns, staging=table) for table in tables]
        try:
            self._execute("show_staged", parts=sql.SQL(" UNION ALL ").join(parts))
        except psycopg.errors.UndefinedTable as error:
            raise self._lost("a staging table is gone") from error
        return parts

    def _hold(self, lines: Sequence[bytes], *, number: int) -> sql.Identifier:
        table = sql.Identifier(f"outbox_inline_{number}")
        self._execute("hold_inline", staging=table, typed_columns=typed_columns(self.layout))
        copy = self._render("copy_inline", staging=table, staged_columns=column_names(self.layout))
        with self.connection.cursor().copy(copy) as rows:
            for text in lines:
                rows.write(text)
        return table

    def _columns(self) -> sql.Composed:
        constants = (
            sql.SQL("{}::{} AS {}").format(sql.Literal(value), sql.SQL(cast("Any", kind)), sql.Identifier(name))
            for name, (kind, value) in self.layout.constant.items()
        )
        return sql.SQL(", ").join([*(sql.Identifier(column.name) for column in self.layout.sent), *constants])

    def _run_statements(self) -> None:
        if self.options.commit_sql is None:
            return
        transaction = self._execute("transaction").fetchone()
        try:
            self.connection.execute(cast("Any", self.options.commit_sql))
        except psycopg.Error as error:
            if is_gone(error):
                raise
            reason = " ".join(str(error).split())
            raise JobError(f"option commitSql: {reason}; nothing was committed. Correct the statement") from error
        if (
            self.connection.info.transaction_status != TransactionStatus.INTRANS
            or self._execute("transaction").fetchone() != transaction
        ):
            raise JobError("option commitSql has ended the transaction. Leave COMMIT and ROLLBACK out")

    def _stash(self, parts: Sequence[sql.Composed], count: int) -> None:
        """One statement in the job's order; without one, a statement a part, in the order of the partitions."""
        if order_by := self.options.order_by:
            order = sql.SQL(", ").join(sql.Identifier(name) for name in order_by)
            stashed = self._insert(sql.SQL("pg_temp.staged "), self._render("in_order", order=order))
        else:
            stashed = sum(self._insert(sql.SQL("({}) AS part").format(part), sql.SQL("")) for part in parts)
        if stashed != count:
            there = cast("tuple[int]", self._execute("count_staged").fetchone())[0]
            if there != count:
                raise self._lost(f"of {count} staged rows {there} are there")
            raise JobError(
                f"{self.run.outbox}: of {count} staged records {stashed} were inserted; nothing was committed. "
                "Look for a trigger or rule that drops some"
            )

    def _insert(self, source: sql.Composable, order: sql.Composable) -> int:
        def names(columns: Sequence[str]) -> sql.Composed:
            return sql.SQL(", ").join(sql.Identifier(name) for name in columns)

        statement = self._render(
            "stash_staged",
            outbox_columns=names(self.layout.outbox_columns),
            record_columns=names(self.layout.record_columns),
            source=source,
        )
        return self.connection.execute(sql.SQL("{} {}").format(statement, order)).rowcount

    def _lost(self, what: str) -> StagingLostError:
        return StagingLostError(
            f"{self.run.outbox}: {what}; nothing was committed. Postgres empties unlogged tables when it crashes. "
            "Run the job again"
        )

    def _execute(
        self, statement: str, values: dict[str, Any] | None = None, **parts: sql.Composable
    ) -> psycopg.Cursor[Any]:
        return self.connection.execute(self._render(statement, **parts), values)

    def _render(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        return render(statements("spark.sql")[statement], self.run.outbox, **parts)
