"""Staging: a table of one run that the run's tasks COPY their rows into.

The driver's session holds an advisory lock named after the table for as long as it works with it. So a table whose lock
is free belongs to a dead run, and any later run may drop it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg import sql

from airflow_outbox.names import OutboxName
from airflow_outbox.spark.columns import StagedColumn, staged_columns
from airflow_outbox.sql import statements
from airflow_outbox.table import connect, render, translated

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_MAX_IDENTIFIER_BYTES = 63
_TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What Spark accepted: the ids of the attempts, one a partition, and how many rows they staged together."""

    attempts: Sequence[int]
    count: int


class Staging:
    """The staging table of one run, over the driver's connection."""

    def __init__(
        self, connection: psycopg.Connection[Any], outbox: OutboxName, columns: Sequence[StagedColumn]
    ) -> None:
        self.columns = columns
        self._connection = connection
        self._outbox = outbox
        self._schema = self._value("schema_of", outbox=outbox.text())
        self._prefix = _prefix(outbox)
        self._table = f"{self._prefix}{secrets.token_hex(_TOKEN_BYTES)}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self._schema, self._table)

    @property
    def column_names(self) -> sql.Composed:
        return sql.SQL(", ").join(sql.Identifier(column.name) for column in self.columns)

    def create(self) -> None:
        """Make the table, claimed first, so that no other run takes it for a dead one's. Raises PostgresError."""
        typed = (sql.SQL("{} {}").format(sql.Identifier(column.name), _type(column)) for column in self.columns)
        self._value("claim_staging", staging=self._table)
        self._execute("create_staging", staging=self.identifier, typed_columns=sql.SQL(", ").join(typed))

    def fill(self, frame: DataFrame, data_source: str) -> StagedRows:
        """Run the DataFrame, each task staging its rows. Raises what Spark raises when a task fails for good."""
        copy = self._render("copy", staging=self.identifier, staged_columns=self.column_names).as_string(None)
        plain = frame.toDF(
            *(f"column_{place}" for place in range(len(self.columns)))
        )  # mapInArrow fails on a name with a dot
        accepted = plain.mapInArrow(_copier(data_source, copy), "attempt bigint, staged bigint").collect()
        return StagedRows([row["attempt"] for row in accepted], sum(row["staged"] for row in accepted))

    def drop(self) -> None:
        """Drop the table; where that fails, as when a straggling task holds it, leave it to the next run."""
        self._drop(self._table)

    def sweep(self) -> None:
        """Drop what dead runs have left beside this outbox."""
        with translated(self._outbox):
            tables = self._execute(
                "staging_tables", values={"schema": _quoted(self._schema), "prefix": self._prefix}
            ).fetchall()
        for (table,) in tables:
            if self._value("claim_left_over_staging", staging=table):
                self._drop(table)
                self._value("release_staging", staging=table)

    def _drop(self, table: str) -> None:
        try:
            with self._connection.transaction():
                self._execute("wait_briefly")
                self._execute("drop_staging", staging=sql.Identifier(self._schema, table))
        except psycopg.Error as error:
            log.warning("%s is left to the next run: %s", table, error)

    def _value(self, statement: str, **values: Any) -> Any:
        with translated(self._outbox):
            row = self._execute(statement, values=values).fetchone()
        return row[0] if row else None

    def _execute(
        self, statement: str, *, values: dict[str, Any] | None = None, **parts: sql.Composable
    ) -> psycopg.Cursor[Any]:
        return self._connection.execute(self._render(statement, **parts), values)

    def _render(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        return render(statements("spark.sql")[statement], self._outbox, **parts)


def prepare(frame: DataFrame, connection: psycopg.Connection[Any], outbox: OutboxName) -> Staging:
    """The staging table for a DataFrame's columns, not made yet. Raises ConfigurationError, PostgresError."""
    return Staging(connection, outbox, staged_columns(frame))


def _copier(data_source: str, copy: str) -> Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]]:
    """What a task runs: all its rows in one COPY and one transaction, so that an attempt stages all of them or none.

    The data source travels to the tasks inside this function, as Spark sends code to its workers: it is in no property,
    argument or environment, and so not in Spark's UI.
    """

    def stage(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow
        from pyspark import TaskContext

        attempt = cast("Any", TaskContext.get()).taskAttemptId()
        staged = 0
        with (
            closing(connect(data_source, purpose="spark task")) as connection,
            connection.transaction(),
            connection.cursor().copy(cast("Any", copy)) as rows,
        ):
            for batch in batches:
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    rows.write_row((*row, attempt))
                staged += batch.num_rows
        yield pyarrow.RecordBatch.from_pydict({"attempt": [attempt], "staged": [staged]})

    return stage


def _prefix(outbox: OutboxName) -> str:
    """How the names of an outbox's staging tables begin, so that the whole stays within what Postgres allows."""
    suffix = "_staging_"
    room = _MAX_IDENTIFIER_BYTES - len(suffix) - 2 * _TOKEN_BYTES
    return outbox.table.encode()[:room].decode(errors="ignore") + suffix


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def _type(column: StagedColumn) -> sql.SQL:
    return sql.SQL(cast("Any", column.type))
