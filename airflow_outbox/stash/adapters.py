"""The kinds of connections that records are stashed over, each as a way to ask a question in the caller's transaction.

Drivers are recognised by what their connections can do. Only psycopg is imported: the others are there when the caller
brings a connection of theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from airflow_outbox.errors import UnsupportedConnectionError

if TYPE_CHECKING:
    import asyncpg
    from django.db.backends.base.base import BaseDatabaseWrapper
    from sqlalchemy.engine import Connection as SQLAlchemyConnection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    Connectable = psycopg.Connection[Any] | SQLAlchemyConnection | Session | BaseDatabaseWrapper
    AsyncConnectable = psycopg.AsyncConnection[Any] | asyncpg.Connection[Any] | AsyncConnection | AsyncSession

Rows = list[tuple[Any, ...]]
Answer = TypeVar("Answer", Rows, Awaitable[Rows])

_DRIVERS = frozenset({"psycopg", "psycopg2", "asyncpg"})


class Question(NamedTuple):
    """A statement with one parameter, written `%(name)s`."""

    text: str
    parameter: str
    value: str

    @property
    def values(self) -> dict[str, str]:
        return {self.parameter: self.value}

    @property
    def numbered(self) -> str:
        """The text with the parameter as `$1`, as Postgres itself has it."""
        return self.text.replace(f"%({self.parameter})s", "$1")


@dataclass(frozen=True, slots=True)
class ConnectionAdapter(Generic[Answer]):
    """A caller's connection: how to ask, the object to keep knowledge about its database with, and whether each
    statement commits by itself.
    """

    ask: Callable[[Question], Answer]
    owner: Any
    commits_by_itself: bool


def adapter_of(connection: Any) -> ConnectionAdapter[Rows]:
    """Return how to ask over a connection that blocks. Raises UnsupportedConnectionError."""
    if isinstance(connection, psycopg.Connection):

        def over_psycopg(question: Question) -> Rows:
            with connection.cursor(row_factory=tuple_row) as cursor:
                return list(cursor.execute(cast("Any", question.text), question.values))

        return ConnectionAdapter(over_psycopg, connection, _commits_by_itself(connection))
    if isinstance(connection, psycopg.AsyncConnection) or hasattr(connection, "run_sync") or _is_asyncpgs(connection):
        raise UnsupportedConnectionError("this is an asynchronous connection. Write `await astash(connection, …)`")
    if hasattr(connection, "ensure_connection") and hasattr(connection, "vendor"):
        return _djangos(connection)
    return _sqlalchemys(connection)


def async_adapter_of(connection: Any) -> ConnectionAdapter[Awaitable[Rows]]:
    """Return how to ask over psycopg's or asyncpg's asynchronous connection. Raises UnsupportedConnectionError."""
    if isinstance(connection, psycopg.AsyncConnection):

        async def over_psycopg(question: Question) -> Rows:
            async with connection.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(cast("Any", question.text), question.values)
                return await cursor.fetchall()

        return ConnectionAdapter(over_psycopg, connection, _commits_by_itself(connection))
    if not _is_asyncpgs(connection):
        raise UnsupportedConnectionError(
            "astash() takes psycopg's AsyncConnection, a connection of asyncpg, or SQLAlchemy's AsyncConnection or "
            "AsyncSession over one of them. For other connections call stash()"
        )

    async def over_asyncpg(question: Question) -> Rows:
        return [tuple(row) for row in await connection.fetch(question.numbered, question.value)]

    # A pool lends a proxy, which nothing can be kept with.
    return ConnectionAdapter(over_asyncpg, getattr(connection, "_con", connection), not connection.is_in_transaction())


def _djangos(connection: Any) -> ConnectionAdapter[Rows]:
    if connection.vendor != "postgresql":
        raise UnsupportedConnectionError
    connection.ensure_connection()

    def ask(question: Question) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(question.text, question.values)
            return list(cursor.fetchall())

    return ConnectionAdapter(ask, connection.connection, bool(connection.get_autocommit()))


def _sqlalchemys(connection: Any) -> ConnectionAdapter[Rows]:
    if hasattr(connection, "get_bind") and not hasattr(connection, "exec_driver_sql"):
        connection = connection.connection()  # a session lends the connection of its transaction
    driver = getattr(getattr(connection, "dialect", None), "driver", None)
    if driver not in _DRIVERS or not hasattr(connection, "exec_driver_sql"):
        raise UnsupportedConnectionError

    def ask(question: Question) -> Rows:
        if driver == "asyncpg":
            rows = connection.exec_driver_sql(question.numbered, (question.value,))
        else:
            rows = connection.exec_driver_sql(question.text, question.values)
        return [tuple(row) for row in rows]

    return ConnectionAdapter(ask, connection.engine, _commits_by_itself(connection.connection.dbapi_connection))


def _commits_by_itself(connection: Any) -> bool:
    """Whether a driver's connection commits each statement, and no transaction is open. An asyncpg connection under
    SQLAlchemy does not tell of transactions.
    """
    info = getattr(connection, "info", None)
    return bool(connection.autocommit) and (info is None or info.transaction_status == TransactionStatus.IDLE)


def _is_asyncpgs(connection: Any) -> bool:
    return hasattr(connection, "is_in_transaction") and hasattr(connection, "fetch")
