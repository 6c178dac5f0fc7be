"""A leader without a harvester: what one tells Postgres, said by hand, so that a test knows what is published when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg

from airflow_outbox import OutboxRecord, Ticket, stash
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.schema import Role, grant_statements, init_outbox
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.fence import Flushed, LedgerPosition
from airflow_outbox.values.records import Snapshot
from airflow_outbox.values.refusals import Cause, Refusal

NAME = OutboxName.parse("outbox")


class Leader:
    """A leader's statements to Postgres, and an application's way to stash."""

    def __init__(self, database: str, *, delivery: str = "exactly_once") -> None:
        self.connection = psycopg.connect(database, autocommit=True)
        init_outbox(self.connection, NAME)
        self.own = connect(database, purpose="test")
        self.table = OutboxTable(self.own, NAME)
        self.view = uuid4()
        self.table.take_over(self.view, [self.table.backend()], member="test")
        self.table.begin(self.view, delivery=delivery, witness=LedgerPosition())

    def stash(self, records: int = 1) -> Ticket:
        with self.connection.transaction():
            return stash(self.connection, [OutboxRecord("t", "k", str(number)) for number in range(records)])

    def watermark(self) -> Snapshot:
        ((text,),) = self.connection.execute("SELECT pg_current_snapshot()::text").fetchall()
        return Snapshot.parse(text)

    def purge(self) -> None:
        """Announce, with a purge, that all is out; the fence row does not know yet."""
        self.table.windows.purge_published(self.view, [], self.watermark(), watermark=self.watermark())

    def beat(self, *, topics: dict[str, int] | None = None) -> None:
        """Announce and store."""
        flushed = Flushed(self.watermark(), 0, topics or {})
        self.table.heartbeat(self.view, published=0, in_flight=0, rate=0, flushed=flushed)

    def park(self, ticket: Ticket, records: int, reason: str = "refused") -> None:
        """Park the first records of a transaction, as if Kafka had refused them."""
        parked = ParkedTable(self.table)
        ids = self.connection.execute(
            "SELECT id FROM outbox WHERE transaction_id = %s::text::xid8 ORDER BY id LIMIT %s",
            [str(ticket.transaction_id), records],
        )
        parked.park(self.view, {id: Refusal(Cause.REFUSED, reason) for (id,) in ids}, self.watermark())

    def discard(self) -> None:
        """Discard what is parked, as an operator has it done."""
        self.connection.execute("UPDATE outbox_parked SET discarded_at = now()")

    def unpark(self) -> None:
        """Publish what is parked."""
        self.connection.execute("DELETE FROM outbox_parked")

    def listening(self) -> list[int]:
        """The processes of the listeners' backends in this database."""
        rows = self.connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'airflow-outbox listen'"
            " AND datname = current_database()"
        )
        return [pid for (pid,) in rows]

    def close(self) -> None:
        self.table.close()
        self.connection.close()


@contextmanager
def logged_in(database: str, connection: psycopg.Connection[Any], kind: Role | None) -> Iterator[str]:
    """A connection string of a role of this kind; with None of one that is granted nothing."""
    role = f"test_{uuid4().hex[:8]}"
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
    try:
        for statement in grant_statements(connection, NAME, kind, role) if kind else ():
            connection.execute(statement.encode())
        yield psycopg.conninfo.make_conninfo(database, user=role, password="secret")
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
