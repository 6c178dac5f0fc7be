"""The one way to the statements in `sql/`: find one by its name, fill in an outbox's tables, run it, translate errors.

A statement's name says where it stands: `fence.take_over` is `take_over` in `sql/fence.sql`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.sql import statement

_BESIDE = (
    "state",
    "shard",
    "ledger",
    "cluster",
    "owed",
    "owed_rows",
    "commits",
    "adopted",
    "parked",
    "undeleted",
    "published",
    "archive",
    "loaded",
    "asked",
    "trouble",
    "member",
    "positions",
    "history",
    "trail",
    "pruned",
    "stash",
)
_PLACEHOLDER = re.compile(rb"%%|%\((\w+)\)s")


def composed(name: str, outbox: OutboxName | None = None, /, **parts: sql.Composable) -> sql.Composed:
    """Return a statement with an outbox's table names, and `parts`, filled in."""
    return filled(statement(name), outbox, **parts)


def filled(text: str, outbox: OutboxName | None, /, **parts: sql.Composable) -> sql.Composed:
    """Return the text of statements with an outbox's table names, and `parts`, filled in."""
    tables = {} if outbox is None else _tables(outbox)
    return sql.SQL(cast("Any", text)).format(**{**tables, **parts})


def _tables(outbox: OutboxName) -> dict[str, sql.Composable]:
    names = {suffix or "outbox": outbox.beside(suffix) for suffix in ("", *_BESIDE)}
    texts = {f"{suffix or 'outbox'}_text": sql.Literal(outbox.text(suffix)) for suffix in ("", *_BESIDE)}
    waiting = sql.SQL(cast("Any", statement("undeleted.unless_undeleted"))).format(undeleted=names["undeleted"])
    watermark = sql.SQL(cast("Any", statement("windows.known_watermark")))
    return {**names, **texts, "unless_undeleted": waiting, "known_watermark": watermark}


class FrequentStatement:
    """A statement that runs for each batch: composed once, and its placeholders are numbered once.

    psycopg does both each time, for a quarter of what a small batch takes to read. It remembers the numbers of texts of
    up to 4,096 bytes, and these are longer.
    """

    def __init__(self, connection: psycopg.Connection[Any], statement: sql.Composed) -> None:
        numbers: dict[bytes, bytes] = {}

        def numbered(found: re.Match[bytes]) -> bytes:
            return b"%" if found[1] is None else numbers.setdefault(found[1], b"$%d" % (len(numbers) + 1))

        self._connection = connection
        self.text = _PLACEHOLDER.sub(numbered, statement.as_bytes(connection))
        self.names = tuple(name.decode() for name in numbers)

    def execute(self, values: Mapping[str, Any], *, binary: bool = False) -> psycopg.Cursor[Any]:
        """Run it, prepared, with the values of its placeholders by name. Raises psycopg.Error."""
        cursor = psycopg.RawCursor(self._connection)
        return cursor.execute(self.text, [values[name] for name in self.names], prepare=True, binary=binary)


class Statements:
    """The statements about one outbox, over one connection. `parts` are filled into all of them."""

    def __init__(self, connection: psycopg.Connection[Any], outbox: OutboxName, /, **parts: sql.Composable) -> None:
        self.connection = connection
        self.outbox = outbox
        self._parts = {**_tables(outbox), **parts}

    def having(self, **parts: sql.Composable) -> Statements:
        """Return the same statements with more parts."""
        return Statements(self.connection, self.outbox, **{**self._parts, **parts})

    def composed(self, name: str, /, **parts: sql.Composable) -> sql.Composed:
        """Return a statement that is filled in, but not run."""
        return filled(statement(name), None, **{**self._parts, **parts})

    def frequent(self, name: str, /, **parts: sql.Composable) -> FrequentStatement:
        """Return a statement that runs for each batch."""
        return FrequentStatement(self.connection, self.composed(name, **parts))

    def execute(
        self, name: str, values: Mapping[str, Any] | None = None, /, **parts: sql.Composable
    ) -> psycopg.Cursor[Any]:
        """Run a statement. Raises PostgresError."""
        with translated(self.outbox):
            return self.connection.execute(self.composed(name, **parts), values)

    def row(self, name: str, values: Mapping[str, Any] | None = None, /, **parts: sql.Composable) -> Any:
        """Run a statement; return its first row, None without one. Raises PostgresError."""
        with translated(self.outbox):
            return self.connection.execute(self.composed(name, **parts), values).fetchone()

    def named_row(self, name: str, values: Mapping[str, Any] | None = None, /, **parts: sql.Composable) -> Any:
        """Run a statement; return its first row as a named tuple, None without one. Raises PostgresError."""
        with translated(self.outbox), self.connection.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(self.composed(name, **parts), values).fetchone()

    def named_rows(self, name: str, values: Mapping[str, Any] | None = None, /, **parts: sql.Composable) -> list[Any]:
        """Run a statement; return all its rows as named tuples. Raises PostgresError."""
        with translated(self.outbox), self.connection.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(self.composed(name, **parts), values).fetchall()

    def rows(
        self, name: str, values: Mapping[str, Any] | None = None, /, **parts: sql.Composable
    ) -> list[tuple[Any, ...]]:
        """Run a statement; return all its rows. Raises PostgresError."""
        with translated(self.outbox):
            return self.connection.execute(self.composed(name, **parts), values).fetchall()
