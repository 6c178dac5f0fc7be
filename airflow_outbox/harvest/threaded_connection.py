"""Connections to Postgres, each with the thread that uses it, awaited from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from airflow_outbox.errors import FencedError, OutboxError, PostgresUnreachableError
from airflow_outbox.harvest.worker_thread import Watchdog, Worker
from airflow_outbox.postgres.connection import CONNECT_TIMEOUT, OutboxConnection
from airflow_outbox.postgres.table import OutboxTable

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_GRACE = 0.5  # seconds that an abandoned call still has


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Give up on a server that takes a call and does not answer, as behind a proxy with a lost backend."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise PostgresUnreachableError(
            f"Postgres has not answered for {seconds:g} s. Check that the server is up. If it is, a session may hold a "
            "lock: `airflow-outbox check` names it"
        ) from None


class ThreadedConnection:
    """A connection and the thread that uses it. A connection that has failed is closed and stays closed."""

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        """`watchdog` watches the thread while it is open."""
        self._watchdog = watchdog
        self._worker: Worker | None = None
        self._table: OutboxTable | None = None

    @property
    def is_open(self) -> bool:
        return self._table is not None

    async def open(self, connected: Callable[[str], OutboxTable], purpose: str) -> None:
        worker = self._worker = Worker(f"outbox-{purpose}", watchdog=self._watchdog)
        made: list[OutboxTable] = []

        def connect() -> None:
            worker.signs.show(may_be_silent=CONNECT_TIMEOUT)
            table = connected(purpose)
            made.append(table)
            if isinstance(table.connection, OutboxConnection):
                table.connection.on_waiting = worker.signs.show

        try:
            await worker.call(connect)
        except asyncio.CancelledError:  # the connection may still be made

            def close() -> None:
                for table in made:
                    table.close()

            worker.run(close)
            self.end()
            raise
        [self._table] = made

    async def call(
        self,
        method: Callable[Concatenate[OutboxTable, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        table, worker = self._table, self._worker
        if table is None or worker is None:
            raise PostgresUnreachableError("the connection to Postgres was lost earlier in this term")
        try:
            return await worker.call(method, table, *args, **kwargs)
        except FencedError:
            raise
        except (OutboxError, asyncio.CancelledError):  # the outcome of an abandoned call is unknown
            self.end()
            raise

    def end(self) -> None:
        """Close after the call under way, if any, without waiting for it. A call that takes long is cut off."""
        table, self._table = self._table, None
        worker, self._worker = self._worker, None
        if worker is not None:
            if table is not None:
                worker.run(table.close)
                asyncio.get_running_loop().call_later(_GRACE, table.hang_up)
            worker.end()


class ReopenedConnection(ThreadedConnection):
    """A connection that no view depends on. It is made when it is needed, and again after a failure."""

    def __init__(self, opened: Callable[[str], OutboxTable], purpose: str) -> None:
        super().__init__()
        self._opened = opened
        self._purpose = purpose
        self._opening = asyncio.Lock()

    async def call(
        self,
        method: Callable[Concatenate[OutboxTable, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        async with self._opening:
            if not self.is_open:
                self.end()
                await self.open(self._opened, self._purpose)
        return await super().call(method, *args, **kwargs)


class Looking(Protocol):
    """The connection, or connections, over which several shards or outboxes of a process look."""

    async def call(
        self,
        connected: Callable[[str], OutboxTable],
        shard: int,
        method: Callable[Concatenate[OutboxTable, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call a method of a shard's table. `connected` makes a connection, where that is needed."""

    def end(self) -> None:
        """Nobody looks any more."""


class SharedConnection:
    """A connection over which several shards of a process look. A call that is given up by one ends it for none."""

    def __init__(self, *, patience: float) -> None:
        """`patience` is after how many seconds without an answer the connection is given up."""
        self._patience = patience
        self._connection = ThreadedConnection()
        self._opening = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()

    async def call(
        self,
        connected: Callable[[str], OutboxTable],
        shard: int,
        method: Callable[Concatenate[OutboxTable, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call a method of a shard's table. Make the connection when it is needed."""

        def called(table: OutboxTable) -> Result:
            return method(table.of(shard), *args, **kwargs)

        async def run() -> Result:
            async with within(self._patience):
                async with self._opening:
                    if not self._connection.is_open:
                        self._connection.end()
                        self._connection = ThreadedConnection()
                        await self._connection.open(connected, "look")
                return await self._connection.call(called)

        task = asyncio.create_task(run())
        self._calls.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def end(self) -> None:
        """End the connection after the calls under way."""
        self._connection.end()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # whoever has waited for it was told
