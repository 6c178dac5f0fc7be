"""The table of what was stashed, as an audit reads it: in one snapshot, and without holding it in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg import sql

from airflow_outbox.audit.fingerprints import DUE, EXPIRED, NO_PIN, WAITING, Header, Stashed, content_of, lane_of
from airflow_outbox.errors import ConfigurationError, OutboxMissingError
from airflow_outbox.postgres.columns import Column, read_columns
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.layout import read_layout
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.slots import slot
from airflow_outbox.postgres.statements import Statements

_NEEDED = ("id", "kafka_topic", "kafka_key", "kafka_value", "kafka_header_keys", "kafka_header_values")
_MOST_ROWS_HELD = 5_000
_CLOCKS_AGREE_WITHIN = 300.0


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """How to read rows: of which topics, and without which headers.

    `horizons` maps each topic that has lost records to a time (seconds since the epoch): a record stashed before it may
    be among the lost ones.
    """

    topics: tuple[str, ...]
    ignored_headers: frozenset[str]
    horizons: Mapping[str, float]

    def excuse(self, topic: str, stashed_at: float | None, *, waits: bool) -> int:
        if waits:
            return WAITING
        horizon = self.horizons.get(topic)
        if horizon is None or (stashed_at is not None and stashed_at > horizon + _CLOCKS_AGREE_WITHIN):
            return DUE
        return EXPIRED


class StashedTable:
    """A table of what was stashed into an outbox, with the outbox's columns and ids.

    It reads over a connection in one transaction of its own. Every method raises PostgresError.
    """

    def __init__(self, connection: psycopg.Connection[Any], name: OutboxName, outbox: OutboxName) -> None:
        """Raises ConfigurationError for a table that lacks a column, OutboxMissingError when there is none."""
        name, outbox = located(connection, name), located(connection, outbox)
        self._connection = connection
        self._name = name
        self._outbox = outbox
        self._columns = self._examined(name, "Name a table of what was stashed")
        self._outbox_columns = self._examined(outbox, "Run `airflow-outbox init`, or correct outbox_table")
        self._parked_columns = read_columns(connection, outbox.sibling("parked"))
        self._parked = outbox.beside("parked" if self._parked_columns else "")
        self._statements = Statements(connection, outbox, table=name.beside(""), parked=self._parked)
        if name.text() == outbox.text():
            raise ConfigurationError(
                f"{name} is the outbox itself, which keeps only what still waits. Name a table of what was stashed"
            )

    def _examined(self, name: OutboxName, remedy: str) -> Mapping[str, Column]:
        columns = read_columns(self._connection, name)
        if not columns:
            raise OutboxMissingError(f"there is no table {name}. {remedy}")
        if missing := [column for column in _NEEDED if column not in columns]:
            raise ConfigurationError(f"{name} has no column {missing[0]}. It needs the outbox's: {', '.join(_NEEDED)}")
        return columns

    @property
    def has_transactions(self) -> bool:
        return "transaction_id" in self._columns

    def snapshot(self) -> str:
        """The name of the snapshot that this transaction reads."""
        return str(self._rows("look")[0][0])

    def borrow(self, snapshot: str) -> None:
        """Read in another transaction's snapshot; call it first in this transaction."""
        self._execute("borrow", snapshot=sql.Literal(snapshot))

    def topics(self) -> tuple[str, ...]:
        return tuple(topic for (topic,) in self._rows("topics"))

    def asks_for_partitions(self) -> bool:
        """Whether any row names the partition it is for."""
        return any(
            self._execute("asks_for_partitions", any=source).fetchall()[0][0]
            for source, columns in (
                (self._name.beside(""), self._columns),
                (self._outbox.beside(""), self._outbox_columns),
                (self._parked, self._parked_columns),
            )
            if "kafka_partition" in columns
        )

    def ids(self) -> tuple[int, int]:
        """The lowest and the highest id; 0 and -1 when there is none."""
        first, last = self._rows("range")[0]
        return (0, -1) if first is None else (first, last)

    def rows(self, reading: TableSnapshot, *, first: int, last: int) -> Iterator[Stashed]:
        """The rows with ids from `first` to `last`, in no particular order."""
        values = {"topics": list(reading.topics), "first": first, "last": last}
        outbox = self._outbox.beside("")
        sources = [("stashed", self._columns, outbox), ("waiting", self._outbox_columns, outbox)]
        if self._parked_columns:
            sources.append(("waiting", self._parked_columns, self._parked))
        for statement, columns, waiting in sources:
            query = self._statements.composed(f"audit.{statement}", waiting=waiting, **_optional(columns))
            with translated(self._name), self._connection.cursor("audit", binary=True) as cursor:
                cursor.itersize = _MOST_ROWS_HELD
                for row in cursor.execute(query, values):
                    yield _stashed(row, reading)

    def named(self, ids: Collection[int]) -> dict[int, tuple[str, str, int | None]]:
        """The topic and key of rows by their ids, for people, and of several shards the one that harvests such rows."""
        shards = self._shards()
        rows = self._execute("named", {"ids": list(ids)}, slot=slot(self._columns)).fetchall()
        return {
            id_: (topic, _shown(key), in_slot % shards if shards > 1 else None) for id_, topic, key, in_slot in rows
        }

    def _shards(self) -> int:
        """How many shards the outbox has; a table that goharvest made alone has one."""
        has_layout = "shards" in read_columns(self._connection, self._outbox.sibling("state"))
        return read_layout(self._connection, self._outbox).shards if has_layout else 1

    def _rows(self, statement: str, **values: Any) -> Sequence[tuple[Any, ...]]:
        return self._execute(statement, values).fetchall()

    def _execute(
        self, statement: str, values: Mapping[str, Any] | None = None, **parts: sql.Composable
    ) -> psycopg.Cursor[Any]:
        with translated(self._name):
            return self._connection.execute(self._statements.composed(f"audit.{statement}", **parts), values)


def _optional(columns: Mapping[str, Column]) -> dict[str, sql.Composable]:
    """The parts of a statement for columns that a table may lack."""
    return {
        part: sql.Identifier(column) if column in columns else sql.SQL(f"NULL::{kind}")
        for part, column, kind in (
            ("partition", "kafka_partition", "integer"),
            ("transaction", "transaction_id", "bigint"),
            ("time", "create_time", "timestamptz"),
        )
    }


def _stashed(row: tuple[Any, ...], reading: TableSnapshot) -> Stashed:
    id_, topic, key, value, names, contents, partition, transaction_id, stashed_at, waits = row
    headers = cast("list[Header]", list(zip(names, contents, strict=False)) if names else [])
    if reading.ignored_headers:
        headers = [header for header in headers if header[0] not in reading.ignored_headers]
    return Stashed(
        lane=lane_of(topic, key),
        pin=NO_PIN if partition is None else partition,
        content=content_of(value, headers),
        id=id_,
        transaction_id=transaction_id,
        excuse=reading.excuse(topic, stashed_at, waits=waits),
    )


def _shown(key: str | bytes) -> str:
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else key
