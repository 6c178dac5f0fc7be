"""An operator's work on parked records: look at them, and ask the leader to retry or to discard them.

Only the leader acts: a request is a mark in the parked table, which it finds within a second.
`harvest.protocol.parking` says what a request means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.columns import Column, column_types
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable

Request = Literal["retry", "discard"]
_HEX = "\\x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The records to act on: those that match everything given. `key` is text, or `\\x` and hexadecimal digits."""

    topic: str | None = None
    key: str | None = None
    ids: tuple[int, ...] = ()
    everything: bool = False

    def __post_init__(self) -> None:
        named = self.topic is not None or self.key is not None or bool(self.ids)
        if named == self.everything:
            raise ConfigurationError("select the records either by topic, key or id, or all of them")


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
        parts = Statements(
            connection,
            self._name,
            **column_types(self._columns),
            partition=sql.Identifier("kafka_partition") if "kafka_partition" in self._columns else sql.NULL,
            transaction_id=sql.SQL("transaction_id::text::bigint" if has_transactions else "NULL::bigint"),
        )
        self._statements = parts.having(chosen=parts.composed("parked.chosen"))

    def ask(self, request: Request, choice: Choice, *, reason: str | None = None) -> int:
        """Ask the leader to retry or discard waiting records; return how many are meant."""
        return self._execute("ask", choice, request=request, reason=reason).rowcount

    def forget(self, choice: Choice) -> int:
        """Empty discarded records; return how many. The note of who discarded them, when and why stays."""
        return self._execute("forget", choice).rowcount

    def listed(self, choice: Choice, *, discarded: bool = False, limit: int | None = None) -> list[dict[str, Any]]:
        """Waiting or discarded records, in order, without their contents."""
        return self._found("list", choice, discarded=discarded, limit=limit)

    def whole(self, choice: Choice, *, limit: int | None = None) -> list[dict[str, Any]]:
        """Whole parked records, both waiting and discarded, in order."""
        return self._found("show", choice, limit=limit)

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

    def _found(self, statement: str, choice: Choice, **values: Any) -> list[dict[str, Any]]:
        with translated(self._name), self._connection.cursor(row_factory=dict_row) as cursor:
            query = self._statements.composed(f"parked.{statement}")
            return cursor.execute(query, {**self._chosen(choice), **values}).fetchall()

    def _execute(self, statement: str, choice: Choice, **values: Any) -> psycopg.Cursor[Any]:
        return self._statements.execute(f"parked.{statement}", {**self._chosen(choice), **values})

    def _chosen(self, choice: Choice) -> dict[str, Any]:
        key = None if choice.key is None else key_value(choice.key, self._columns)
        return {"topic": choice.topic, "key": key, "ids": list(choice.ids) or None}


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
        raise ConfigurationError(f"the key {text!r} is not \\x followed by pairs of hexadecimal digits") from None


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
