"""A listener's session with Postgres: it asks, and hears announcements."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol, cast

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from airflow_outbox.postgres.connection import KEEP_ALIVE, parsed
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.published import query

PATIENCE = 10.0
"""Seconds that connecting, or a statement, may take."""

AnswerRows = Sequence[tuple[Any, ...]]


class ListenerSession(Protocol):
    """One connection. After a failed call it can't be used any more."""

    async def ask(self, statement: str, name: OutboxName, values: Mapping[str, Any]) -> AnswerRows:
        """Return the rows of a statement of tickets.sql."""
        ...

    async def listen(self, channel: str) -> None:
        """Hear announcements on this channel from now on."""
        ...

    def waking(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `wake` when something may have been announced, while this lasts."""
        ...

    async def news(self) -> Sequence[tuple[str, str]]:
        """Return the announcements since the last call: channel and text."""
        ...


Connect = Callable[[str], AbstractAsyncContextManager[ListenerSession]]
"""Opens a session with the database of a connection string."""


class PostgresSession:
    """A session over psycopg. A pooler may stand behind it: nothing is set or prepared, except LISTEN."""

    def __init__(self, connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
        self._connection = connection
        self._heard: list[tuple[str, str]] = []  # what came with answers: no more is to be read then, which would wake

    async def ask(self, statement: str, name: OutboxName, values: Mapping[str, Any]) -> AnswerRows:
        async with asyncio.timeout(PATIENCE):
            rows = await (await self._connection.execute(query(statement, name), values)).fetchall()
        self._heard += await self._notices()
        return rows

    async def listen(self, channel: str) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        if self._heard:
            wake()
        loop.add_reader(self._connection.fileno(), wake)
        try:
            yield
        finally:
            loop.remove_reader(self._connection.fileno())

    async def news(self) -> Sequence[tuple[str, str]]:
        heard, self._heard = self._heard, []
        return [*heard, *await self._notices()]

    async def _notices(self) -> list[tuple[str, str]]:
        return [(note.channel, note.payload) async for note in self._connection.notifies(timeout=0)]


@asynccontextmanager
async def connected(data_source: str) -> AsyncIterator[ListenerSession]:
    """Open a session, and close it at the end."""
    given = parsed(data_source)
    settings = cast("Any", {**KEEP_ALIVE, **given, "application_name": "airflow-outbox listen"})
    async with asyncio.timeout(PATIENCE):
        connection = await psycopg.AsyncConnection.connect(
            **settings, autocommit=True, prepare_threshold=None, row_factory=tuple_row
        )
    try:
        yield PostgresSession(connection)
    finally:
        with contextlib.suppress(psycopg.Error):
            await connection.close()
