"""Parked records in Postgres: the leader's statements about them, and what operators ask of it.

A leader moves records here and publishes from here. Operators look, and leave requests, which only the leader carries
out. `harvest.protocol.parking` explains parking.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import psycopg
from psycopg import sql

from airflow_outbox.errors import FencedError
from airflow_outbox.postgres.connection import Column, render, storable, translated
from airflow_outbox.postgres.kept_columns import archived, kept_columns
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.table import SHARD
from airflow_outbox.sql import statements
from airflow_outbox.values.pages import Length, OutboxRow
from airflow_outbox.values.records import Lane, Snapshot

_LONGEST_DELAY = 600.0
_PARKED_AT_ONCE = 20_000  # so that a source transaction of any length is parked within the statements' time limit


@dataclass(frozen=True, slots=True)
class Why:
    """Why a record waits (no cause: behind another), and after how many seconds to try it (None: when asked)."""

    cause: str | None
    reason: str | None
    delay: float | None


class ParkedTable:
    """The leader's statements, over one connection. Methods raise PostgresError, and those with a view FencedError.

    `topic_causes` are the causes that park a whole topic, `passing_causes` those that can pass. `archives` tells
    whether published records are archived. `most_bytes` is as for OutboxTable.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        name: OutboxName,
        columns: Mapping[str, Column],
        *,
        topic_causes: Sequence[str],
        passing_causes: Sequence[str],
        archives: bool,
        most_bytes: int,
    ) -> None:
        self._connection = connection
        self._name = name
        has_transactions = "transaction_id" in columns
        self._parts = {
            "columns": kept_columns(columns),
            "archived": archived(name, columns) if archives else sql.SQL(""),
            "partition": sql.Identifier("kafka_partition") if "kafka_partition" in columns else sql.NULL,
            "transaction_id": sql.SQL("transaction_id::text::bigint" if has_transactions else "NULL::bigint"),
        }
        self._causes = list(topic_causes)
        self._passing = list(passing_causes)
        self._most_bytes = most_bytes

    def lanes(self) -> tuple[dict[Lane, int], set[str]]:
        """Return how many records wait in each parked lane, and the topics that are parked whole."""
        with translated(self._name):
            lanes = {(topic, key): count for topic, key, count in self._execute("lanes")}
            return lanes, {topic for (topic,) in self._execute("topics")}

    def park(self, view: UUID, records: Mapping[int, Why], snapshot: Snapshot | None) -> None:
        """Move records of the outbox here, by id: those whose transactions the snapshot sees, or (without one) those
        that carry this view's mark.
        """
        mine = self._render("marked" if snapshot is None else "visible")
        seen = None if snapshot is None else str(snapshot)
        ids = sorted(records)
        for first in range(0, len(ids), _PARKED_AT_ONCE):
            slice_ = {identity: records[identity] for identity in ids[first : first + _PARKED_AT_ONCE]}
            self._fenced_unless("park", {"mine": mine}, view=view, snapshot=seen, **self._columns_of(slice_))

    def due(self, *, max_records: int, max_bytes: int, of_all_lanes: bool) -> list[OutboxRow]:
        """Return the records to publish now, in order, each with its number in place of an id."""
        measured = render(statements("queries.sql")["measured"], self._name)
        query = self._render("due", **self._parts, measured=measured)
        values: dict[str, Any] = {"causes": self._causes, "of_all_lanes": of_all_lanes, "most_bytes": self._most_bytes}
        values |= {"max_records": max_records, "max_bytes": max_bytes, "longest_delay": _LONGEST_DELAY}
        with translated(self._name), self._connection.cursor(binary=True) as cursor:
            cursor.execute(query, values)
            return cast("list[OutboxRow]", cursor.fetchall())

    def in_part(self) -> set[int]:
        """Return the transactions with a part here and the rest in the outbox."""
        with translated(self._name):
            return {transaction_id for (transaction_id,) in self._execute("in_part")}

    def lengths(self, transaction_ids: Collection[int]) -> dict[int, Length]:
        """Return how many records of each transaction wait, or are still in the outbox, and the last parked one's
        number.

        Only retryable transactions count: none of their records waits for a manual retry, or somebody has asked for
        one.
        """
        ids = [str(number) for number in transaction_ids]
        with translated(self._name):
            rows = self._execute("lengths", transaction_ids=ids, passing=self._passing)
            return {transaction_id: Length(records, last) for transaction_id, records, last in rows}

    def unpark(self, view: UUID, numbers: Sequence[int]) -> None:
        """Delete published records, by number, or archive them."""
        self._fenced_unless("unpark", view=view, numbers=list(numbers), batch=None)

    def note_refusals(self, view: UUID, refusals: Mapping[int, Why], others: Collection[int]) -> None:
        """Note records that were refused again, by number. Their retries are delayed longer and longer. `others` were
        tried with them, and wait for them.
        """
        passing = [*self._causes, *self._passing]
        values = {"others": list(others), "passing": passing, "longest_delay": _LONGEST_DELAY}
        self._fenced_unless("note_refusals", view=view, **values, **self._columns_of(refusals))

    def discard_requested(self, view: UUID) -> list[Lane]:
        """Discard what operators asked to discard. Return the lanes, once for each record."""
        with translated(self._name):
            return [(topic, key) for topic, key in self._execute("discard_requested", view=view)]

    def release(self, view: UUID, *, max_records: int) -> bool:
        """Make due the records that were not refused and wait for nothing any more. Return whether more may follow."""
        return int(self._fenced_unless("release", view=view, max_records=max_records)[1]) >= max_records

    def _render(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        return render(statements("parked.sql")[statement], self._name, **parts)

    def _execute(
        self, statement: str, parts: Mapping[str, sql.Composable] | None = None, /, **values: Any
    ) -> psycopg.Cursor[Any]:
        query = self._render(statement, **self._parts, **(parts or {}))
        return self._connection.execute(query, {"shard": SHARD, "causes": self._causes, **values})

    def _fenced_unless(
        self, statement: str, parts: Mapping[str, sql.Composable] | None = None, /, **values: Any
    ) -> tuple[Any, ...]:
        with translated(self._name):
            row = self._execute(statement, parts, **values).fetchone()
        if row is None or not row[0]:
            raise FencedError(f"{self._name}: another view has taken over shard {SHARD}")
        return cast("tuple[Any, ...]", row)

    def _columns_of(self, records: Mapping[int, Why]) -> dict[str, list[Any]]:
        why = records.values()
        return {
            "ids": list(records),
            "why": [each.cause for each in why],
            "reasons": [each.reason and storable(self._connection, each.reason) for each in why],
            "delays": [each.delay for each in why],
        }
