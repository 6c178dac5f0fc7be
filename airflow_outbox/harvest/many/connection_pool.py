"""A few connections to Postgres that all outboxes of a process share, each with the thread that uses it.

No view depends on them, except for the looks at a fence, which change nothing. A call that is given up
costs its connection and delays nobody else: the others go on over the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg

from airflow_outbox.harvest.threaded_connection import within
from airflow_outbox.harvest.worker_thread import Worker
from airflow_outbox.postgres.connection import OutboxConnection
from airflow_outbox.postgres.table import OutboxTable

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Opened = Callable[[], "psycopg.Connection[Any]"]


class _Kept:
    """A connection, made when it is needed, and its thread."""

    def __init__(self, opened: Opened, purpose: str) -> None:
        self._opened = opened
        self._worker = Worker(f"outbox-{purpose}")
        self._connection: psycopg.Connection[Any] | None = None
        self._is_given_up = False

    async def call(self, function: Callable[[psycopg.Connection[Any]], Result]) -> Result:
        return await self._worker.call(self._call, function)

    def _call(self, function: Callable[[psycopg.Connection[Any]], Result]) -> Result:
        if self._connection is None or self._connection.closed:
            self._connection = self._opened()
            if self._is_given_up:
                self._connection.close()
        return function(self._connection)

    def end(self) -> None:
        """Cut off a call under way, if any, and close the connection."""
        self._is_given_up = True
        if isinstance(self._connection, OutboxConnection) and not self._connection.closed:
            self._worker.run(self._connection.close)
        self._worker.end()

    def hang_up(self) -> None:
        if isinstance(self._connection, OutboxConnection):
            self._connection.hang_up()


class ConnectionPool:
    """At most `size` connections."""

    def __init__(self, opened: Opened, *, size: int, patience: float, purpose: str = "shared") -> None:
        """`patience` is after how many seconds a call is given up, its wait for a connection included."""
        self._opened = opened
        self._purpose = purpose
        self._patience = patience
        self._free: asyncio.LifoQueue[_Kept] = asyncio.LifoQueue()  # those that are seldom needed are not even made
        for _ in range(size):
            self._free.put_nowait(_Kept(opened, purpose))

    async def call(
        self, function: Callable[[psycopg.Connection[Any]], Result], *, patience: float | None = None
    ) -> Result:
        """Call a function with a connection. Raises what it raises; PostgresUnreachableError when it takes too long."""
        async with within(patience or self._patience):
            kept = await self._free.get()
            try:
                return await kept.call(function)
            except asyncio.CancelledError:
                kept.hang_up()
                kept.end()
                kept = _Kept(self._opened, self._purpose)
                raise
            finally:
                self._free.put_nowait(kept)

    def close(self) -> None:
        """End the connections that are not in use."""
        while not self._free.empty():
            self._free.get_nowait().end()


class PooledLooks:
    """One outbox's looks that no view depends on, over the shared connections."""

    def __init__(self, pool: ConnectionPool, table_of: Callable[[psycopg.Connection[Any]], OutboxTable]) -> None:
        self._pool = pool
        self._table_of = table_of

    async def call(
        self,
        connected: Callable[[str], OutboxTable],
        shard: int,
        method: Callable[Concatenate[OutboxTable, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call a method of a shard's table. `connected` makes a connection of the outbox's own, which is not needed."""

        def called(connection: psycopg.Connection[Any]) -> Result:
            return method(self._table_of(connection).of(shard), *args, **kwargs)

        return await self._pool.call(called)

    def end(self) -> None:
        """The shared connections stay."""
