"""The two ways from staging into the outbox, inside the commit's transaction: as text, and as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from airflow_outbox.errors import JobError, PostgresUnreachableError, StagingLostError
from airflow_outbox.postgres.errors import is_gone
from airflow_outbox.postgres.names import identifier
from airflow_outbox.postgres.statements import composed
from airflow_outbox.spark.options import WriteOptions
from airflow_outbox.spark.staged_columns import StagedColumns
from airflow_outbox.spark.staging import StagedRows, StagingRun, column_names, typed_columns

_PIECES_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStatements:
    """Spark's statements on a connection, for one run."""

    connection: psycopg.Connection[Any]
    run: StagingRun

    def execute(
        self, statement: str, values: dict[str, Any] | None = None, **parts: sql.Composable
    ) -> psycopg.Cursor[Any]:
        return self.connection.execute(self.composed(statement, **parts), values)

    def composed(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        return composed(f"spark.{statement}", self.run.outbox, **parts)

    def staging(self, table: str) -> sql.Composable:
        return identifier(self.run.schema, table)

    def lost(self, what: str) -> StagingLostError:
        return StagingLostError(
            f"{self.run.outbox}: {what}; nothing was committed. Postgres empties unlogged tables when it crashes. "
            "Run the job again"
        )

    def require_all(self, *, stashed: int, there: int, staged: int) -> None:
        """Raise StagingLostError or JobError unless as many records were inserted as were staged."""
        if there != staged:
            raise self.lost(f"{there} of {staged} staged rows are left")
        if stashed != staged:
            raise JobError(
                f"{self.run.outbox}: {stashed} of {staged} staged records were inserted; nothing was committed. "
                "Look for a trigger or rule that drops some"
            )


def stash_text(at: SparkStatements, layout: StagedColumns, staged: Sequence[StagedRows]) -> int:
    """COPY the staged lines into the outbox, some MiB at a time; return how many records that makes."""
    copy = at.composed("stash_text", outbox_columns=_names(layout.text_columns))
    there = stashed = 0
    for rows in staged:
        inline = [[(rows.count, b"".join(rows.inline))]] if rows.inline else []
        for group in inline if rows.table is None else _staged_text(at, rows.table):
            with at.connection.cursor() as cursor:
                with _copying(cursor, copy, at) as lines:
                    for records, text in group:
                        there += records
                        lines.write(text)
                stashed += cursor.rowcount
    count = sum(rows.count for rows in staged)
    at.require_all(stashed=stashed, there=there, staged=count)
    return count


@contextmanager
def _copying(cursor: psycopg.Cursor[Any], copy: sql.Composed, at: SparkStatements) -> Iterator[psycopg.Copy]:
    try:
        with cursor.copy(copy) as lines:
            yield lines
    except ValueError as error:
        if not at.connection.closed:
            raise
        # psycopg expects one answer to a COPY's end. A pooler that has lost its server gives two.
        raise PostgresUnreachableError(f"{at.run.outbox}: the connection was lost during a COPY") from error


def _staged_text(at: SparkStatements, table: str) -> Iterator[list[tuple[int, bytes]]]:
    query = at.composed("staged_text", staging=at.staging(table))
    first = 0
    while True:
        with at.connection.cursor(binary=True) as cursor:
            try:
                cursor.execute(query, {"first": first, "behind": first + _PIECES_AT_ONCE})
            except psycopg.errors.UndefinedTable as error:
                raise at.lost("a staging table is gone") from error
            group = cursor.fetchall()
        if not group:
            return
        yield group
        first += _PIECES_AT_ONCE


def stash_rows(
    at: SparkStatements, layout: StagedColumns, staged: Sequence[StagedRows], options: WriteOptions, *, search_path: str
) -> int:
    """Show the staged rows to the job's statements, which find names by `search_path`, and insert them in the job's
    order; return how many there are.

    Without an order it runs one statement a part, in the order of the partitions.
    """
    parts = _show(at, layout, staged)
    if options.commit_sql is not None:
        _run_statements(at, options.commit_sql, search_path=search_path)
    count = sum(rows.count for rows in staged)
    if options.order_by:
        order = at.composed("in_order", order=_names(options.order_by))
        stashed = _insert(at, layout, sql.SQL("pg_temp.staged "), order)
    else:
        stashed = sum(_insert(at, layout, sql.SQL("({}) AS part").format(part), sql.SQL("")) for part in parts)
    there = stashed
    if stashed != count:
        there = cast("tuple[int]", at.execute("count_staged").fetchone())[0]
    at.require_all(stashed=stashed, there=there, staged=count)
    at.execute("hide_staged")
    return count


def _show(at: SparkStatements, layout: StagedColumns, staged: Sequence[StagedRows]) -> list[sql.Composed]:
    """Make the view `staged`; return its parts, in the order of the partitions."""
    tables: list[sql.Composable] = []
    inline: list[bytes] = []

    def hold_inline() -> None:
        tables.append(_hold(at, layout, inline, number=len(tables)))
        inline.clear()

    for rows in staged:
        inline.extend(rows.inline)
        if rows.table is not None:
            if inline:
                hold_inline()
            tables.append(at.staging(rows.table))
    if inline or not tables:
        hold_inline()
    constants = (
        sql.SQL("{}::{} AS {}").format(sql.Literal(value), sql.SQL(cast("Any", kind)), sql.Identifier(name))
        for name, (kind, value) in layout.constant.items()
    )
    columns = sql.SQL(", ").join([*(sql.Identifier(column.name) for column in layout.sent), *constants])
    parts = [at.composed("select_staged", columns=columns, staging=table) for table in tables]
    at.execute("hide_staged")
    try:
        at.execute("show_staged", parts=sql.SQL(" UNION ALL ").join(parts))
    except psycopg.errors.UndefinedTable as error:
        raise at.lost("a staging table is gone") from error
    return parts


def _hold(at: SparkStatements, layout: StagedColumns, lines: Sequence[bytes], *, number: int) -> sql.Identifier:
    table = sql.Identifier(f"outbox_inline_{number}")
    at.execute("hold_inline", staging=table, typed_columns=typed_columns(layout))
    with at.connection.cursor().copy(
        at.composed("copy_inline", staging=table, staged_columns=column_names(layout))
    ) as rows:
        for text in lines:
            rows.write(text)
    return table


def _run_statements(at: SparkStatements, commit_sql: str, *, search_path: str) -> None:
    transaction = at.execute("transaction").fetchone()
    at.execute("look_there", {"search_path": search_path})
    try:
        at.connection.execute(cast("Any", commit_sql))
    except psycopg.Error as error:
        if is_gone(error):
            raise
        reason = " ".join(str(error).split())
        raise JobError(f"option commitSql: {reason}; nothing was committed. Correct the statement") from error
    if (
        at.connection.info.transaction_status != TransactionStatus.INTRANS
        or at.execute("transaction").fetchone() != transaction
    ):
        raise JobError("option commitSql ended the transaction. Leave COMMIT and ROLLBACK out")
    at.execute("look_here")


def _insert(at: SparkStatements, layout: StagedColumns, source: sql.Composable, order: sql.Composable) -> int:
    statement = at.composed(
        "stash_staged",
        outbox_columns=_names(layout.outbox_columns),
        record_columns=_names(layout.record_columns),
        source=source,
    )
    return at.connection.execute(sql.SQL("{} {}").format(statement, order)).rowcount


def _names(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in columns)
