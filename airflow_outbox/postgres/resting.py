"""Many outboxes over one connection: find them, look whether any has records, and keep those that rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.postgres.connection import OutboxConnection
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import composed
from airflow_outbox.values.outbox_list import OutboxPattern
from airflow_outbox.values.verdict import Thresholds

_AT_ONCE = 50
"""Outboxes that one statement looks at: Postgres locks all of their tables for it."""
_PREPARED = 1_000
_ANY = OutboxName(None, "outboxes")


@dataclass(frozen=True, slots=True)
class FoundOutbox:
    """An outbox that is there: its name with its schema, and which table of that name it is."""

    name: OutboxName
    oid: int


@dataclass(frozen=True, slots=True)
class TakenUp:
    """Whether a resting outbox was taken, and which member has held it until now (None: nobody)."""

    is_ours: bool
    member: str | None


@dataclass(frozen=True, slots=True)
class Rest:
    """How a resting outbox is. It tells whether the fence still names its view, and why it is halted (None: it is not);
    whether an operator has paused it, and whether parked records wait for a leader.
    """

    is_ours: bool
    halted: str | None
    paused: bool
    has_parked: bool


class RestingTable:
    """The statements about one outbox that rests. They are made once, and prepared on each connection."""

    def __init__(self, name: OutboxName, outbox_id: UUID, *, member: str, thresholds: Thresholds) -> None:
        self.name = name
        self.outbox_id = outbox_id
        self._values = {"outbox_id": outbox_id, "member": member, **asdict(thresholds)}
        self.waits = composed("many.waits", name)
        self._take_up = composed("many.take_up", name)
        self._rest = composed("many.rest", name, waits=self.waits)
        self._let_go = composed("many.let_go", name)

    def take_up(self, connection: psycopg.Connection[Any], view: UUID) -> TakenUp:
        """Hold the outbox under a view, unless another member is alive there. Raises PostgresError."""
        row = self._row(connection, self._take_up, {**self._values, "view": view}, prepare=False)
        if row is None:
            raise OutboxMissingError(f"{self.name} is no longer outbox {self.outbox_id}")
        return TakenUp(*row)

    def rest(self, connection: psycopg.Connection[Any], view: UUID) -> Rest:
        """Tell operators that its holder is alive, and look. Raises PostgresError."""
        row = self._row(connection, self._rest, {"view": view})
        if row is None:
            raise OutboxMissingError(f"{self.name.text('shard')} is empty. Run `airflow-outbox init`")
        return Rest(*row)

    def let_go(self, connection: psycopg.Connection[Any], view: UUID) -> None:
        """Leave the outbox to other members. Raises PostgresError."""
        with translated(self.name):
            connection.execute(self._let_go, {"view": view})

    def has_records(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the outbox has a record. Raises PostgresError."""
        row = self._row(connection, composed("many.look", waits=self.waits), None, prepare=False)
        return row is not None and bool(row[0])

    def _row(
        self,
        connection: psycopg.Connection[Any],
        statement: sql.Composed,
        values: Mapping[str, Any] | None,
        *,
        prepare: bool = True,
    ) -> tuple[Any, ...] | None:
        with translated(self.name):
            row: tuple[Any, ...] | None = connection.execute(statement, values, prepare=prepare).fetchone()
        return row


def begin_looking(connection: psycopg.Connection[Any]) -> None:
    """Set up a connection for this module's statements. Raises PostgresError."""
    connection.prepared_max = _PREPARED
    with translated(_ANY):
        connection.execute(composed("many.begin_session"))


def database_of(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return the database's system identifier and its oid. Raises PostgresError."""
    with translated(_ANY):
        system_identifier, oid = connection.execute(composed("many.database")).fetchone() or (0, 0)
    return int(system_identifier), int(oid)


def find_outboxes(
    connection: psycopg.Connection[Any], patterns: Sequence[OutboxPattern]
) -> tuple[list[FoundOutbox], list[OutboxPattern]]:
    """Return the outboxes that are meant, and the patterns that mean none. Raises PostgresError."""
    path = connection.schemas if isinstance(connection, OutboxConnection) else ()
    with translated(_ANY):
        rows = connection.execute(composed("many.find"), prepare=True).fetchall()
    found: dict[tuple[str, str], FoundOutbox] = {}
    unmet = []
    for pattern in patterns:
        meant = {(schema, table): oid for schema, table, oid in rows if pattern.matches(schema, table, path=path)}
        for (schema, table), oid in meant.items():
            found[schema, table] = FoundOutbox(OutboxName(schema, table), oid)
        if not meant:
            unmet.append(pattern)
    return list(found.values()), unmet


class Looks:
    """Looks at several outboxes at once. The statements are made once, as long as the outboxes are the same."""

    def __init__(self) -> None:
        self._outboxes: tuple[OutboxName, ...] = ()
        self._statements: list[bytes] = []

    def with_records(self, connection: psycopg.Connection[Any], tables: Sequence[RestingTable]) -> list[bool]:
        """Return for each outbox whether it has a record. Raises PostgresError, for all of them."""
        outboxes = tuple(table.name for table in tables)
        if outboxes != self._outboxes:
            parts = [sql.SQL(", ").join(table.waits for table in some) for some in _divided(tables)]
            self._statements = [composed("many.look", waits=waits).as_bytes(connection) for waits in parts]
            self._outboxes = outboxes
        seen: list[bool] = []
        with translated(_ANY):
            for statement in self._statements:
                seen += connection.execute(statement, prepare=True).fetchone() or ()
        return seen


def _divided(tables: Sequence[RestingTable]) -> Iterator[Sequence[RestingTable]]:
    for start in range(0, len(tables), _AT_ONCE):
        yield tables[start : start + _AT_ONCE]
