"""Tables under test, real and simulated, and transactions that write to them: for the tests of the port `Table`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import psycopg
from simulation.postgres import Database, Transaction

from airflow_outbox.harvest.ports import Table
from airflow_outbox.values.records import MarkedRecord

ALL = {"max_records": 1000, "max_bytes": 10**9}
INSERT = (
    "INSERT INTO outbox (id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)"
    " VALUES (%s, %s, %s, %s, %s, %s)"
)
LOAD = (
    "INSERT INTO outbox"
    " (id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, transaction_id)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s::text::xid8)"
)


class Writer(Protocol):
    """A transaction of an application."""

    def insert(self, *ids: int) -> None: ...

    def load(self, number: int, transaction_id: int) -> None:
        """Insert a record that is said to be of another transaction."""

    def draw(self) -> int:
        """The next id of the sequence."""

    def commit(self, *, synchronous: bool = True) -> None: ...

    def rollback(self) -> None: ...

    def prepare(self) -> Callable[[], None]:
        """PREPARE TRANSACTION; how to commit it."""


@dataclass(frozen=True, slots=True)
class TableUnderTest:
    """Two members' tables over one outbox, a writer's way into it, and an operator's to its parked records: what is
    asked of them, by id. `elapse` is when the time of every next try has come. `back_up`: these clusters are backups.
    `ask_attach`: an owed one is to count again.
    """

    one: Table
    other: Table
    commit: Callable[[list[MarkedRecord]], None]
    begin: Callable[[], Writer]
    ask: Callable[[str, Collection[int]], None]
    elapse: Callable[[], None]
    back_up: Callable[[Collection[str]], None]
    ask_attach: Callable[[str], None]


def pending(count: int, *, value: str | None = "value") -> list[MarkedRecord]:
    return [MarkedRecord(number, "t", f"k{number}", value, ["h"], ["1"], None) for number in range(1, count + 1)]


def record(number: int) -> MarkedRecord:
    return pending(1)[0]._replace(id=number)


class RealWriter:
    def __init__(self, database: str) -> None:
        self._connection = psycopg.connect(database)

    def insert(self, *ids: int) -> None:
        for number in ids:
            self._connection.execute(INSERT, record(number)[:6])

    def load(self, number: int, transaction_id: int) -> None:
        self._connection.execute(LOAD, [*record(number)[:6], transaction_id])

    def draw(self) -> int:
        row = self._connection.execute("SELECT nextval(pg_get_serial_sequence('outbox', 'id'))").fetchone()
        assert row is not None
        return int(row[0])

    def commit(self, *, synchronous: bool = True) -> None:
        self._connection.execute(f"SET LOCAL synchronous_commit = {'on' if synchronous else 'off'}")
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.close()

    def prepare(self) -> Callable[[], None]:
        name = f"test {uuid4()}"
        self._connection.execute(f"PREPARE TRANSACTION '{name}'")
        self._connection.autocommit = True

        def commit() -> None:
            self._connection.execute(f"COMMIT PREPARED '{name}'")
            self._connection.close()

        return commit


class SimulatedWriter:
    def __init__(self, database: Database) -> None:
        self._transaction: Transaction = database.begin()

    def insert(self, *ids: int) -> None:
        for number in ids:
            self._transaction.insert(record(number))

    def load(self, number: int, transaction_id: int) -> None:
        self._transaction.insert(record(number), of_transaction=transaction_id)

    def draw(self) -> int:
        return self._transaction.draw()

    def commit(self, *, synchronous: bool = True) -> None:
        self._transaction.commit(synchronous=synchronous)

    def rollback(self) -> None:
        self._transaction.rollback()

    def prepare(self) -> Callable[[], None]:
        prepared = self._transaction.prepare()
        return lambda: prepared.end(committed=True)
