"""Parked records in Postgres: the leader's statements about them, and what operators ask of it.

A leader moves records here and publishes from here. Operators look, and leave requests, which only the leader carries
out. `harvest.protocol.parking` explains parking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast
from uuid import UUID

from psycopg import sql

from airflow_outbox.errors import ConfigurationError, FencedError, PostgresError
from airflow_outbox.postgres.connection import storable
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.kept_columns import archived, kept_columns
from airflow_outbox.postgres.slots import own
from airflow_outbox.postgres.statements import Statements, composed
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.undeleted import refusal_of
from airflow_outbox.values.pages import Length, OutboxRow
from airflow_outbox.values.records import Key, Lane, Snapshot, short_key
from airflow_outbox.values.refusals import Cause, Refusal

_FIRST_DELAY = 5.0  # seconds until a refusal that can pass is tried again
_LONGEST_DELAY = 600.0
_PARKED_AT_ONCE = 20_000  # so that a source transaction of any length is parked within the statements' time limit
_ROWS_AT_ONCE = 10_000
_MOST_CHANGED = 10_000  # by one statement, however many an operator has asked for: purges wait for it
_TOPIC_CAUSES = [cause.value for cause in Cause if cause.is_of_the_topic]
_PASSING_CAUSES = [cause.value for cause in Cause if cause.can_pass]


class _HeldError(Exception):
    """Records are still there that were deleted."""


class ParkedTable:
    """The leader's statements, over one connection. Methods raise PostgresError. Those with a view raise FencedError,
    but for `discard_requested`, which then does nothing.

    A record's refusal is why it waits; None: it waits behind another. One that can pass is tried again by itself.
    """

    def __init__(self, table: OutboxTable) -> None:
        """The parked records of an outbox, over the same connection."""
        name, columns = table.name, table.columns
        self._connection = table.connection
        self._name = name
        has_transactions = "transaction_id" in columns
        self._statements = Statements(
            table.connection,
            name,
            columns=kept_columns(columns),
            archived=archived(name, columns) if table.archives else sql.SQL(""),
            partition=sql.Identifier("kafka_partition") if "kafka_partition" in columns else sql.NULL,
            transaction_id=sql.SQL("transaction_id::text::bigint" if has_transactions else "NULL::bigint"),
            measured=composed("windows.measured", name),
            key=composed("parked.key"),
            lane_type=sql.SQL("bytea" if columns["kafka_key"].is_bytes else "text"),
            **{
                part: sql.SQL("") if table.slots is None else own(columns, of)
                for part, of in {"own": "", "own_record": "record", "own_standing": "standing"}.items()
            },
        )
        self._shard = table.shard
        self._undeleted = table.undeleted
        slots = list(table.slots or ())
        self._given = {"shard": table.shard, "slots": slots, "causes": _TOPIC_CAUSES, "most_bytes": table.most_bytes}

    def lanes(self, *, most: int) -> tuple[dict[str, Counter[Key]], set[str], dict[str, int]]:
        """Return how many records wait in each lane, by topic and short key; the topics that are parked whole; and how
        many records wait in each topic whose lanes are left out. These are the topics with the most records: all others
        have at most `most` records together. Large keys are not in memory at once.
        """
        counted: dict[str, int] = {}
        topics: list[str] = []
        records = 0
        for topic, count in self._rows("records"):
            records += count
            if records <= most:
                topics.append(topic)
            else:
                counted[topic] = count
        lanes: dict[str, Counter[Key]] = {}
        values = {"topics": topics}
        for topic, key, count in chain(self._paged("lanes", values), self._streamed("large_lanes", values)):
            lanes.setdefault(topic, Counter())[short_key(key)] += count
        return lanes, {topic for (topic,) in self._rows("topics")}, counted

    def waiting_lanes(self, lanes: Sequence[Lane], *, leaving: Sequence[int]) -> set[Lane]:
        """Return those of these lanes in which records wait, but for the `leaving` ones, by number."""
        values = {"topics": [topic for topic, _ in lanes], "keys": [key for _, key in lanes], "leaving": list(leaving)}
        return {lanes[place - 1] for (place,) in self._rows("waiting_lanes", values)}

    def park(self, view: UUID, records: Mapping[int, Refusal | None], snapshot: Snapshot | None) -> None:
        """Move records of the outbox here, by id: those whose transactions the snapshot sees, or (without one) those
        that carry this view's mark. Raises ConfigurationError when Postgres does not keep them.
        """
        mine = self._statements.composed("parked.marked" if snapshot is None else "parked.visible")
        seen = None if snapshot is None else str(snapshot)
        ids = sorted(records)
        for first in range(0, len(ids), _PARKED_AT_ONCE):
            slice_ = {identity: records[identity] for identity in ids[first : first + _PARKED_AT_ONCE]}
            self._park({"view": view, "snapshot": seen, **self._columns_of(slice_)}, mine)

    def _park(self, values: Mapping[str, Any], mine: sql.Composable) -> None:
        """Move records here. If Postgres won't delete one, copies of all are made instead, and the records noted as
        undeleted: they have to come here in their order. Those that it does delete go when they are tried again.
        """
        try:
            with translated(self._name), self._connection.transaction():
                moved = self._entered("park", values, mine)
                held = moved < len(values["ids"]) and self._rows("held", values, mine=mine)
                if not held:
                    return
                raise _HeldError
        except _HeldError:
            reason = self._undeleted.keeper()
        except PostgresError as error:
            if (refusal := refusal_of(error)) is None:
                raise
            reason = refusal
        with translated(self._name), self._connection.transaction():
            self._entered("park_copies", {**values, "held": reason}, mine)
        self._undeleted.are_noted()

    def _entered(self, statement: str, values: Mapping[str, Any], mine: sql.Composable) -> int:
        """Run a statement that moves or copies records here; return how many. Raises ConfigurationError if some are not
        here afterwards: the transaction must not be committed, else they would be nowhere.
        """
        _, moved, lost = self._require_fence(self._rows(statement, values, mine=mine))
        if lost:
            raise ConfigurationError(
                f"{self._name.sibling('parked')}: {lost} records were entered and are not there. Find out what "
                "takes them away, such as a trigger, and remove that"
            )
        return int(moved)

    def due(self, *, max_records: int, max_bytes: int, of_all_lanes: bool) -> tuple[list[OutboxRow], str | None]:
        """Return the records to publish now, in order, each with its number in place of an id, and the snapshot in
        which they were read; None if there are none.
        """
        query = self._statements.composed("parked.due")
        values: dict[str, Any] = {**self._given, "of_all_lanes": of_all_lanes, "longest_delay": _LONGEST_DELAY}
        values |= {"max_records": max_records, "max_bytes": max_bytes}
        with translated(self._name), self._connection.cursor(binary=True) as cursor:
            found = cursor.execute(query, values).fetchall()
        return [cast("OutboxRow", row[:-1]) for row in found], found[0][-1] if found else None

    def in_part(self) -> set[int]:
        """Return the transactions with a part here and the rest in the outbox."""
        return {transaction_id for (transaction_id,) in self._rows("in_part")}

    def lengths(self, transaction_ids: Collection[int]) -> dict[int, Length]:
        """Return how many records of each transaction wait, or are still in the outbox, and the last parked one's
        number.

        Only retryable transactions count: none of their records waits for a manual retry, or somebody has asked for
        one.
        """
        ids = [str(number) for number in transaction_ids]
        rows = self._rows("lengths", {"transaction_ids": ids, "passing": _PASSING_CAUSES})
        return {transaction_id: Length(records, last) for transaction_id, records, last in rows}

    def unpark(self, view: UUID, numbers: Sequence[int], *, batch: int | None = None) -> None:
        """Delete published records, by number, or archive them. `batch` is theirs in the ledger. Raises
        ConfigurationError when Postgres keeps one.
        """
        values = {"view": view, "numbers": list(numbers), "batch": batch}
        _, deleted = self._require_fence(self._rows("unpark", values))
        if deleted < len(numbers) and self._rows("kept", values)[0][0]:
            raise ConfigurationError(
                f"{self._name.sibling('parked')}: a record was published and deleted, and is still there. Find out "
                "what keeps it, such as a trigger, and remove that"
            )

    def note_refusals(
        self, view: UUID, refusals: Mapping[int, Refusal], *, others: Collection[int], tried_in: str | None = None
    ) -> None:
        """Note records that were refused again, by number. Their retries are delayed longer and longer. `others` were
        tried with them, and wait for them. A retry for which somebody has asked since the snapshot `tried_in`, in which
        they were read, is still to come; so are some of those behind the refused ones, where these are very many.
        """
        passing = [*_TOPIC_CAUSES, *_PASSING_CAUSES]
        values = {"view": view, "others": list(others), "passing": passing, "longest_delay": _LONGEST_DELAY}
        values |= {"tried_in": tried_in, "most": _MOST_CHANGED, **self._columns_of(refusals)}
        self._require_fence(self._rows("note_refusals", values))

    def discard_requested(self, view: UUID) -> list[Lane]:
        """Discard what operators asked to discard, or some of it where it is very much. Return the lanes, by short
        keys, once for each record; none: nothing is left.
        """
        values = {"view": view, "most": _MOST_CHANGED}
        return [(topic, short_key(key)) for topic, key in self._streamed("discard_requested", values)]

    def release(self, view: UUID, *, max_records: int) -> bool:
        """Make due the records that were not refused and wait for nothing any more. Return whether more may follow."""
        _, released = self._require_fence(self._rows("release", {"view": view, "max_records": max_records}))
        return int(released) >= max_records

    def _paged(self, statement: str, values: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Run a statement and read its rows page by page, which takes less time than one by one."""
        with (
            translated(self._name),
            self._connection.transaction(),
            self._connection.cursor(f"airflow_outbox_{statement}") as cursor,
        ):
            cursor.itersize = _ROWS_AT_ONCE
            yield from cursor.execute(self._statements.composed(f"parked.{statement}"), {**self._given, **values})

    def _streamed(self, statement: str, values: Mapping[str, Any] | None = None) -> Iterator[tuple[Any, ...]]:
        """Run a statement and read its rows one by one: not all of their keys are in memory at a time."""
        query = self._statements.composed(f"parked.{statement}")
        with translated(self._name), self._connection.cursor() as cursor:
            yield from cursor.stream(query, {**self._given, **(values or {})})

    def _rows(
        self, statement: str, values: Mapping[str, Any] | None = None, /, **parts: sql.Composable
    ) -> list[tuple[Any, ...]]:
        return self._statements.rows(f"parked.{statement}", {**self._given, **(values or {})}, **parts)

    def _require_fence(self, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        if not rows or not rows[0][0]:
            raise FencedError(f"{self._name}: another view has taken over shard {self._shard}")
        return rows[0]

    def _columns_of(self, records: Mapping[int, Refusal] | Mapping[int, Refusal | None]) -> dict[str, list[Any]]:
        refusals = records.values()
        return {
            "ids": list(records),
            "why": [each and each.cause.value for each in refusals],
            "reasons": [each and storable(self._connection, each.reason) for each in refusals],
            "delays": [_FIRST_DELAY if each and each.cause.can_pass else None for each in refusals],
        }
