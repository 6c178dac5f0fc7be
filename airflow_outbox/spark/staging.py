"""Staging: where rows wait, out of sight, until Spark has decided which task attempts count.

A task attempt whose rows don't fit into its commit message makes a table of its own and fills it by one COPY, in one
transaction. So an attempt leaves all of its rows or nothing, its rows keep their order, and none of them can be taken
for another attempt's. A comment on the table names its owner, so tables that nobody needs any more can be recognised.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import psycopg
from psycopg import sql

from airflow_outbox.postgres.commits import CommitId
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName, identifier
from airflow_outbox.postgres.statements import composed
from airflow_outbox.spark.copy_text import pieces
from airflow_outbox.spark.retrying import patiently
from airflow_outbox.spark.staged_columns import StagedColumns

log = logging.getLogger(__name__)

_MAX_IDENTIFIER_BYTES = 63
_RUN_CHARACTERS = 8
_ATTEMPT_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows that one task attempt has staged: `count` rows, in `table` or, if few, as lines in `inline`."""

    count: int
    table: str | None
    inline: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StagingRun:
    """The write that stages: its outbox, the schema to stage in, a token of its own, and the id to commit under."""

    outbox: OutboxName
    schema: str
    token: str
    commit_id: CommitId
    is_stream: bool

    def table(self, attempt: int) -> str:
        """The staging table of a task attempt; Spark numbers the attempts of a driver across its jobs."""
        return f"{prefix(self.outbox)}{self.token}_{attempt:x}"

    @property
    def description(self) -> dict[str, Any]:
        return {
            "app_id": self.commit_id.app_id,
            "version": self.commit_id.version,
            "is_stream": self.is_stream,
            "run": self.token,
        }


def stage(
    lines: Iterable[tuple[int, bytes]],
    *,
    run: StagingRun,
    layout: StagedColumns,
    inline_bytes: int,
    attempt: int,
    data_source: str,
) -> StagedRows:
    """Stage the lines of one task attempt; each text comes with its number of rows. Raises PostgresError."""
    staged, held, held_bytes = 0, list[bytes](), 0
    copy: Callable[[bytes], None] | None = None
    table = run.table(attempt)
    with ExitStack() as stack:
        for rows, text in lines:
            staged += rows
            held.append(text)
            held_bytes += len(text)
            if copy is None and held_bytes > inline_bytes:
                copy = stack.enter_context(_copy(table, run, layout, data_source))
            if copy is not None:
                for each in held:
                    copy(each)
                held.clear()
    return StagedRows(staged, None if copy is None else table, tuple(held))


@contextmanager
def _copy(table: str, run: StagingRun, layout: StagedColumns, data_source: str) -> Iterator[Callable[[bytes], None]]:
    staging = identifier(run.schema, table)

    def statement(name: str, **parts: sql.Composable) -> sql.Composed:
        return composed(f"spark.{name}", run.outbox, staging=staging, **parts)

    with (
        closing(patiently(lambda: connect(data_source, purpose="spark task", is_pooled=True))) as connection,
        translated(run.outbox),
        connection.transaction(),
    ):
        *_, now = connection.execute(statement("begin_staging")).fetchone() or (0,)
        if layout.is_text:
            connection.execute(statement("create_text_staging"))
            connection.execute(statement("store_text_plainly"))
        else:
            connection.execute(statement("create_staging", typed_columns=typed_columns(layout)))
        about = sql.Literal(json.dumps({**run.description, "created": now}))
        connection.execute(statement("describe_staging", description=about))
        copy = statement("copy_text") if layout.is_text else statement("copy", staged_columns=column_names(layout))
        with connection.cursor().copy(copy) as rows:
            yield _pieces_into(rows) if layout.is_text else rows.write


def _pieces_into(rows: psycopg.Copy) -> Callable[[bytes], None]:
    rows.set_types(["int4", "int4", "bytea"])
    places = count()

    def write(text: bytes) -> None:
        for piece in pieces(text):
            rows.write_row((next(places), piece.count(b"\n"), piece))

    return write


def typed_columns(layout: StagedColumns) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(cast("Any", column.type)))
        for column in layout.sent
    )


def column_names(layout: StagedColumns) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in layout.sent)


def drop(connection: psycopg.Connection[Any], run: StagingRun, tables: Sequence[str]) -> None:
    """Drop staging tables. Where that fails, for instance when a straggling task holds one, a later run does it."""
    for table in tables:
        staging = identifier(run.schema, table)
        try:
            with connection.transaction():
                for name in ("look_here", "wait_briefly", "drop_staging"):
                    connection.execute(composed(f"spark.{name}", run.outbox, staging=staging))
        except psycopg.Error as error:
            log.warning("%s could not be dropped; a later run drops it: %s", table, error)


def sweep(connection: psycopg.Connection[Any], run: StagingRun, *, ttl_seconds: int) -> None:
    """Drop the staging tables of this run, and of runs that have ended in any way."""
    values = {
        "schema": run.schema,
        "prefix": prefix(run.outbox),
        "run": run.token,
        "ttl": ttl_seconds,
    }
    with translated(run.outbox), connection.transaction():
        connection.execute(composed("spark.look_here", run.outbox))
        query = composed("spark.staging_tables", run.outbox)
        tables = [name for (name,) in connection.execute(query, values).fetchall()]
    drop(connection, run, tables)


def prefix(outbox: OutboxName) -> str:
    """The prefix of an outbox's staging tables, short enough that whole names stay within Postgres's limit."""
    suffix = "_staging_"
    room = _MAX_IDENTIFIER_BYTES - len(suffix) - _RUN_CHARACTERS - len("_") - _ATTEMPT_CHARACTERS
    return outbox.table.encode()[:room].decode(errors="ignore") + suffix
