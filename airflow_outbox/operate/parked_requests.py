"""An operator's work on parked records: look at them, and ask the leader to retry or to discard them.

Only the leader acts: a request is a mark in the parked table, which it finds within a second.
`harvest.protocol.parking` says what a request means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.columns import Column, column_types
from airflow_outbox.postgres.connection import storable
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.slots import slot
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.trail import noted
from airflow_outbox.values.refusals import Cause

Request = Literal["retry", "discard"]
_HEX = "\\x"
_MOST_COUNTED = 100_000
_MOST_CHANGED = 10_000  # by one statement: the leader waits for it
_LONGEST_KEY = 200
_LONGEST_VALUE = 65_536
_LONGEST_HEADER = 4_096
_MOST_HEADERS = 100
_NAMED = 10  # ids or numbers that a trail names

REFUSED = "any"
"""In place of a cause: the records that were refused themselves."""
BEHIND = "none"
"""In place of a cause: the records that wait behind others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The records to act on: those that match everything given. `key` is text, or `\\x` and hexadecimal digits.

    `cause` is a cause's value, REFUSED or BEHIND. `ids` are the records' in the outbox, `numbers` those in the parked
    table. Records with a higher number than `up_to` are left out: they were parked since somebody looked.
    """

    topic: str | None = None
    key: str | None = None
    cause: str | None = None
    ids: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    everything: bool = False
    up_to: int | None = None

    def __post_init__(self) -> None:
        if any(self._given()) == self.everything:
            raise ConfigurationError("select the records either by topic, key, cause or id, or all of them")
        if self.cause not in (None, REFUSED, BEHIND, *Cause):
            raise ConfigurationError(
                f"{self.cause!r} is no cause. Give one of {', '.join(Cause)}, {REFUSED} or {BEHIND}"
            )

    def words(self) -> str:
        """The choice in words, for the trail."""
        given = {"topic": self.topic, "key": self.key, "cause": self.cause}
        words = [f"{name} {value}" for name, value in given.items() if value is not None]
        for name, numbers in {"id": self.ids, "number": self.numbers}.items():
            if numbers:
                words.append(f"{name} {', '.join(map(str, numbers[:_NAMED]))}{', ...' * (len(numbers) > _NAMED)}")
        return "; ".join(words) or "all"

    def _given(self) -> tuple[bool, ...]:
        named = (self.topic is not None, self.key is not None, self.cause is not None)
        return (*named, bool(self.ids), bool(self.numbers))


@dataclass(frozen=True, slots=True)
class ListingPlace:
    """A record's place in a listing: the next page begins after it."""

    topic: str
    number: int
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Matched:
    """How many records match, exact up to a bound, and the last number of all parked records at that time."""

    records: int
    is_exact: bool
    up_to: int


@dataclass(frozen=True, slots=True)
class ParkedCounts:
    """How many records are parked.

    `refused` counts the records that Kafka does not take, by cause; `waiting` the records behind them. For source
    transactions, `transactions_refused` have a refused record, and `transactions_held` only share keys with such
    transactions. Both are None in an outbox that does not know its transactions.
    """

    refused: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    transactions_refused: int | None = None
    transactions_held: int | None = None


class ParkedRequests:
    """The operators' statements, over one connection. Methods raise PostgresError and OutboxMissingError."""

    def __init__(self, connection: psycopg.Connection[Any], name: OutboxName) -> None:
        table = OutboxTable(connection, name)
        self._connection = connection
        self._name = table.name
        self._columns = table.columns
        has_transactions = "transaction_id" in self._columns
        is_bytes = self._columns["kafka_key"].is_bytes
        self._statements = Statements(
            connection,
            self._name,
            **column_types(self._columns),
            lane_type=sql.SQL("bytea" if is_bytes else "text"),
            partition=sql.Identifier("kafka_partition") if "kafka_partition" in self._columns else sql.NULL,
            shard_now=self._shard_now(connection),
            transaction_id=sql.SQL("transaction_id::text::bigint" if has_transactions else "NULL::bigint"),
        )

    def _shard_now(self, connection: psycopg.Connection[Any]) -> sql.Composed:
        return Statements(connection, self._name).composed("slots.shard", slot=slot(self._columns))

    def ask(
        self, request: Request, choice: Choice, *, reason: str | None = None, on_behalf_of: str | None = None
    ) -> int:
        """Ask the leader to retry or discard waiting records; return how many are meant.

        Very many are asked for in portions, each by a statement and with an entry in the trail of its own.
        """
        note = self._noted(request, choice, reason=reason, on_behalf_of=on_behalf_of)
        kept = None if reason is None else storable(self._connection, reason)
        return self._asked("ask", choice, {"request": request, "reason": kept, **note})

    def forget(self, choice: Choice, *, on_behalf_of: str | None = None) -> int:
        """Empty discarded records; return how many. The note of who discarded them, when and why stays."""
        note = self._noted("purge", choice, on_behalf_of=on_behalf_of)
        return self._asked("forget", choice, note, discarded=True)

    def listed(self, choice: Choice, *, discarded: bool = False, limit: int | None = None) -> list[dict[str, Any]]:
        """Waiting or discarded records, in order, without their contents."""
        return self._found("list", choice, {"limit": limit}, **self._standing(discarded=discarded))

    def undeleted(self, choice: Choice, *, limit: int | None = None, whole_keys: bool = True) -> list[dict[str, Any]]:
        """Published records that Postgres would not delete, in order and as `listed` shows records."""
        if choice.cause is not None:
            return []
        with translated(self._name), self._connection.cursor(row_factory=dict_row) as cursor:
            query = self._statements.composed("undeleted.list")
            values = {"limit": limit, "most_key": None if whole_keys else _LONGEST_KEY}
            return cursor.execute(query, {**self._values(choice), **values}).fetchall()

    def page(
        self, choice: Choice, *, discarded: bool = False, after: ListingPlace | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Up to `limit` records after a place, by topic, or by cause and topic where a cause is chosen.

        They come without their contents, with the beginnings of their keys. Takes milliseconds among millions.
        """
        by_cause = choice.cause not in (None, BEHIND) and not discarded
        values: dict[str, Any] = {"limit": limit, "most_key": _LONGEST_KEY}
        parts: dict[str, Any] = {
            "order": self._statements.composed("parked.by_cause" if by_cause else "parked.by_topic"),
            "after": self._statements.composed("parked.any"),
        }
        if after is not None:
            parts["after"] = self._statements.composed(f"parked.after_in_{'cause' if by_cause else 'topic'}")
            values |= {"after_topic": after.topic, "after_number": after.number, "after_cause": after.cause}
        return self._found("page", choice, values, **self._standing(discarded=discarded), **parts)

    def matched(self, choice: Choice, *, discarded: bool = False) -> Matched:
        """How many waiting (or discarded) records an action would mean."""
        query = self._composed("count", choice, **self._standing(discarded=discarded))
        with translated(self._name):
            values = {**self._values(choice), "most": _MOST_COUNTED + 1}
            count, up_to = cast("tuple[int, int]", self._connection.execute(query, values).fetchone())
        return Matched(min(count, _MOST_COUNTED), count <= _MOST_COUNTED, up_to)

    def whole(self, choice: Choice, *, limit: int | None = None) -> list[dict[str, Any]]:
        """Whole parked records, both waiting and discarded, in order."""
        return self._found("show", choice, {"limit": limit}, waiting=False)

    def record(self, number: int) -> dict[str, Any] | None:
        """One record by its number, with the beginnings of what may be long, and for whom its last request was made."""
        values = {"most": _LONGEST_VALUE, "most_header": _LONGEST_HEADER, "most_headers": _MOST_HEADERS}
        with translated(self._name), self._connection.cursor(row_factory=dict_row) as cursor:
            query = self._statements.composed("parked.record")
            return cursor.execute(query, {"number": number, **values}).fetchone()

    def topics(self, *, limit: int = 100) -> list[str]:
        """The first topics, in alphabetical order, that have waiting records."""
        rows = self._statements.rows("parked.topics_waiting", {"most_topics": limit})
        return [topic for (topic,) in rows]

    def counts(self) -> ParkedCounts:
        """How many records are parked, and why."""
        by_cause = dict(self._statements.rows("parked.counts"))
        transactions: tuple[int | None, int | None] = (None, None)
        if "transaction_id" in self._columns:
            transactions = self._statements.row("parked.transactions") or transactions
        waiting = by_cause.pop(None, 0)
        return ParkedCounts(by_cause, waiting, *transactions)

    def refused(self, *, topics: int) -> tuple[int, list[str]]:
        """How many waiting records were refused themselves, and up to `topics` of their topics."""
        count, names = self._statements.row("parked.refused", {"topics": topics}) or (0, [])
        return count, [str(shown(name)) for name in names]

    def _found(
        self, statement: str, choice: Choice, values: Mapping[str, Any], *, waiting: bool, **parts: sql.Composable
    ) -> list[dict[str, Any]]:
        with translated(self._name), self._connection.cursor(row_factory=dict_row) as cursor:
            query = self._composed(statement, choice, waiting=waiting, **parts)
            return cursor.execute(query, {**self._values(choice), **values}).fetchall()

    def _asked(self, statement: str, choice: Choice, values: Mapping[str, Any], *, discarded: bool = False) -> int:
        standing = self._standing(discarded=discarded)
        portions = self._composed("portions", choice, **standing)
        query = self._composed(statement, choice, noted=self._statements.composed("trail.noted"), **standing)
        values = {**self._values(choice), **values}
        asked, after = 0, 0
        with translated(self._name):
            for (last,) in self._connection.execute(portions, {**values, "most": _MOST_CHANGED}).fetchall():
                row = self._connection.execute(query, {**values, "after": after, "last": last}).fetchone()
                asked, after = asked + (int(row[0]) if row else 0), last
        return asked

    def _noted(
        self, action: str, choice: Choice, *, on_behalf_of: str | None, reason: str | None = None
    ) -> dict[str, Any]:
        return noted(
            self._connection, action, on_behalf_of=on_behalf_of, matched=choice.words(), reason=reason, counts=True
        )

    def _standing(self, *, discarded: bool) -> dict[str, Any]:
        standing = self._statements.composed("parked.discarded" if discarded else "parked.waiting")
        return {"standing": standing, "waiting": not discarded}

    def _composed(self, statement: str, choice: Choice, *, waiting: bool, **parts: sql.Composable) -> sql.Composed:
        chosen = sql.SQL(" AND ").join(self._conditions(choice, waiting=waiting))
        return self._statements.composed(f"parked.{statement}", chosen=chosen, **parts)

    def _conditions(self, choice: Choice, *, waiting: bool) -> Iterator[sql.Composed]:
        yield self._statements.composed("parked.any")
        if choice.key is not None:
            place = "_and_topic" if choice.topic is not None else "_in_any_topic" if waiting else ""
            of_key, topics = map(self._statements.composed, ("parked.of_key", "parked.topics_waiting"))
            yield self._statements.composed(f"parked.of_key{place}", of_key=of_key, topics_waiting=topics)
        elif choice.topic is not None:
            yield self._statements.composed("parked.of_topic")
        if choice.cause is not None:
            parts = {REFUSED: "with_cause", BEHIND: "without_cause"}
            yield self._statements.composed(f"parked.{parts.get(choice.cause, 'of_cause')}")
        if choice.ids:
            yield self._statements.composed("parked.of_ids")
        if choice.numbers:
            yield self._statements.composed("parked.of_numbers")
        if choice.up_to is not None:
            yield self._statements.composed("parked.up_to")

    def _values(self, choice: Choice) -> dict[str, Any]:
        key = None if choice.key is None else key_value(choice.key, self._columns)
        given = {"topic": choice.topic, "key": key, "cause": choice.cause, "up_to": choice.up_to}
        return {**given, "ids": list(choice.ids), "numbers": list(choice.numbers), "most_topics": None}


def key_value(text: str, columns: Mapping[str, Column]) -> str | bytes:
    """A key as the outbox has it, from what an operator types. In a BYTEA column, `\\x` begins hexadecimal digits.

    Raises ConfigurationError.
    """
    if not columns["kafka_key"].is_bytes:
        return text
    if not text.startswith(_HEX):
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix(_HEX))
    except ValueError:
        raise ConfigurationError(
            f"the key {text!r} is not \\x followed by pairs of hexadecimal digits. Correct it"
        ) from None


def shown(value: Any) -> Any:
    """A record's value as people can read and type it: bytes as text if they are text, else in hexadecimal."""
    if isinstance(value, list):
        return [shown(each) for each in value]
    if not isinstance(value, bytes):
        return value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return _HEX + value.hex()
    return text if text.isprintable() and not text.startswith(_HEX) else _HEX + value.hex()
