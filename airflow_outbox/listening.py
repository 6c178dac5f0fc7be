"""Wait for many tickets, and follow outboxes, over one connection to a database: for event loops, Airflow's triggerer
above all.

A leader announces every move of the watermark by NOTIFY as it deletes what it has published, and at least once a second
(sql/queries.sql: purge_published, heartbeat). So whoever listens hears within milliseconds of a commit in Kafka.
Whether a transaction was committed, Postgres alone knows, and is asked, once: what has committed stays so. Where no
notifications come (a connection pooler swallows them, nobody leads), the watermark is looked at once a second.

What it costs the database, however many wait: `MOST_STATEMENTS` statements a second, and two more in the first one;
while nothing happens, some in ten seconds. Many tickets are asked for in one statement.

A connection that is lost is made anew; who waits learns of it by the log alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from airflow_outbox.connection import KEEP_ALIVE, translated
from airflow_outbox.errors import OutboxError, OutboxMissingError, PostgresUnreachableError
from airflow_outbox.names import OutboxName
from airflow_outbox.records import Snapshot, Ticket
from airflow_outbox.tickets import COMMITTED, Outcome, TicketState, TicketStatus, Watermarks, judge, query

MOST_STATEMENTS = 17
_BURST = 2
_GREETING_INTERVAL = 0.5  # who comes is asked for with others: announcements must not wait for them
_LOOK_INTERVAL = 1.0  # where nothing is heard, and for who follows
_QUIET_LOOK_INTERVAL = 10.0  # where news come by themselves
_HEARD_FOR = 2.5
_FIRST_REPORT = 2.0
_REPORT_INTERVAL = 10.0
_REPORT_SHARE = 20  # counting takes at most one part in so many of the time
_PATIENCE = 10.0
_LINGER = 30.0  # for who comes next: connecting takes longer than publishing
_SHORTEST_DELAY = 0.1
_LONGEST_DELAY = 5.0
_NEVER = float("-inf")

_log = logging.getLogger(__name__)
News = TypeVar("News")


@dataclass(frozen=True, slots=True)
class Account:
    """How far an outbox is out, and how many records of each topic were published, in this incarnation, up to and with
    batch number `batch`.
    """

    watermarks: Watermarks
    batch: int
    topics: Mapping[str, int]


@dataclass(eq=False, slots=True)
class _Waiter:
    """Somebody who waits for a ticket. What there is to tell goes through a queue, into their own task."""

    ticket: Ticket
    has_committed: bool
    news: asyncio.Queue[TicketStatus | Exception] = field(default_factory=asyncio.Queue)
    is_new: bool = True
    is_answered: bool = False

    def tell(self, status: TicketStatus | Exception) -> None:
        self.is_new = False
        self.has_committed |= isinstance(status, TicketStatus) and status.state is TicketState.WAITING
        self.is_answered = isinstance(status, Exception) or status.state is TicketState.PUBLISHED
        self.news.put_nowait(status)


@dataclass(eq=False, slots=True)
class _Attended:
    """An outbox that somebody wants to know of, and what is known. Times are the event loop's."""

    name: OutboxName
    report_at: float
    waiters: set[_Waiter] = field(default_factory=set)
    followers: set[asyncio.Queue[Account | Exception]] = field(default_factory=set)
    watermarks: Watermarks | None = None
    may_count: bool | None = None
    looked_at: float = _NEVER
    heard_at: float = _NEVER
    greeted_at: float = _NEVER
    left_at: float = _NEVER

    def is_deserted(self, now: float) -> bool:
        return not self.waiters and not self.followers and now - self.left_at >= _LINGER

    @property
    def channel(self) -> str:
        assert self.watermarks is not None
        return f"outbox {self.watermarks.outbox_id}"

    def is_to_look(self, now: float) -> bool:
        quiet = now - self.heard_at < _HEARD_FOR and not self.followers
        return now - self.looked_at >= (_QUIET_LOOK_INTERVAL if quiet else _LOOK_INTERVAL)

    def answer(self) -> None:
        """Tell those whose transaction is known to have committed, if the watermark sees it."""
        for waiter in self.unanswered():
            if waiter.has_committed and self._sees(waiter):
                self._tell(waiter, COMMITTED)

    def tell(
        self, waiters: Collection[_Waiter], outcomes: Mapping[int, Outcome], left: Mapping[int, int] | None
    ) -> None:
        """Tell them what came of their transactions; `left` is how many records of each there are, if that is known."""
        for waiter in waiters:
            number = waiter.ticket.transaction_id
            self._tell(waiter, outcomes[number], None if left is None else left.get(number, 0))

    def _tell(self, waiter: _Waiter, outcome: Outcome, left: int | None = None) -> None:
        assert self.watermarks is not None
        try:
            waiter.tell(judge(waiter.ticket, outcome, self.watermarks, left=left))
        except OutboxError as error:
            waiter.tell(error)

    def due(self, now: float) -> list[_Waiter]:
        """Those for whom there may be an answer; and those who have come, now and then."""
        greeting = now - self.greeted_at >= _GREETING_INTERVAL
        due = [waiter for waiter in self.unanswered() if (greeting and waiter.is_new) or self._sees(waiter)]
        if any(waiter.is_new for waiter in due):
            self.greeted_at = now
        return due

    def has_new(self) -> bool:
        return any(waiter.is_new for waiter in self.waiters)

    def unanswered(self) -> list[_Waiter]:
        return [waiter for waiter in self.waiters if not waiter.is_answered]

    def learn(self, found: Watermarks) -> None:
        """Take note of what is stored, which may be older than what was announced."""
        known = self.watermarks
        if known is not None and (known.outbox_id, known.incarnation) == (found.outbox_id, found.incarnation):
            for shard, watermark in enumerate(known.shards):
                if watermark is not None and shard < len(found.shards):
                    found = found.later(shard, watermark)
        self.watermarks = found

    def hear(self, payload: str, now: float) -> None:
        """Take note of an announcement; of one that can't be understood, too: it is a reason to look."""
        self.heard_at = now
        known = self.watermarks
        try:
            shard, incarnation, snapshot = payload.split(" ")
            if known is None or int(incarnation) != known.incarnation or not shard.isdecimal():
                raise ValueError(payload)
            self.watermarks = known.later(int(shard), Snapshot.parse(snapshot))
        except (ValueError, IndexError):
            self.looked_at = _NEVER

    def fail(self, error: Exception) -> None:
        for waiter in self.unanswered():
            waiter.tell(error)
        for news in self.followers:
            news.put_nowait(error)

    def _sees(self, waiter: _Waiter) -> bool:
        assert self.watermarks is not None
        try:
            return self.watermarks.see(waiter.ticket)
        except OutboxError:  # the answer will say it
            return True


class Listener:
    """Serves all who wait in one event loop for outboxes of one database; `listener` finds it.

    It has a connection while somebody waits, and for a while after. `data_source` is a libpq connection string;
    `statements` is how many statements were sent.
    """

    def __init__(self, data_source: str) -> None:
        self.statements = 0
        self._data_source = data_source
        self._attended: dict[OutboxName, _Attended] = {}
        self._wake = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._listening: set[str] = set()
        self._credit = float(_BURST)
        self._credited_at = 0.0

    async def statuses(
        self, name: OutboxName, ticket: Ticket, *, has_committed: bool = False
    ) -> AsyncGenerator[TicketStatus, None]:
        """How far a ticket's transaction is, now and then, until all of it is published: that comes last.

        `has_committed` tells that it is known to have committed, which saves asking.

        Raises RolledBackError, TicketRefusedError, NoWatermarkError; OutboxMissingError, PostgresError when the role
        may not look. A database that is away is waited for.
        """
        waiter = _Waiter(ticket, has_committed)
        with self._attending(name) as attended:
            attended.waiters.add(waiter)
            try:
                while not (waiter.is_answered and waiter.news.empty()):
                    yield await _told(waiter.news)
            finally:
                attended.waiters.discard(waiter)

    async def accounts(self, name: OutboxName) -> AsyncGenerator[Account, None]:
        """An outbox's account, about once a second. Raises OutboxMissingError, PostgresError as `statuses`."""
        news: asyncio.Queue[Account | Exception] = asyncio.Queue()
        with self._attending(name) as attended:
            attended.followers.add(news)
            try:
                while True:
                    yield await _told(news)
            finally:
                attended.followers.discard(news)

    @contextmanager
    def _attending(self, name: OutboxName) -> Iterator[_Attended]:
        now = asyncio.get_running_loop().time()
        attended = self._attended.setdefault(name, _Attended(name, report_at=now + _FIRST_REPORT, left_at=now))
        self._wake.set()
        if self._serving is None:
            # In a context of its own: the first waiter's has its log in it.
            self._serving = asyncio.create_task(self._serve(), context=Context())
        try:
            yield attended
        finally:
            attended.left_at = asyncio.get_running_loop().time()

    async def _serve(self) -> None:
        delay = _SHORTEST_DELAY
        try:
            while self._attended:
                try:
                    async with self._connected() as connection:
                        delay = _SHORTEST_DELAY
                        await self._attend(connection)
                except (psycopg.Error, PostgresUnreachableError, TimeoutError) as error:
                    reason = " ".join(str(error).split()) or "no answer"
                    _log.warning("Postgres can't be asked what is published: %s. Next try in %.1f s", reason, delay)
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, _LONGEST_DELAY)
        except Exception as error:
            for attended in self._attended.values():
                attended.fail(error)
            raise
        finally:
            self._serving = None

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A connection that a pooler may stand behind: nothing is set or prepared, but for LISTEN."""
        given = psycopg.conninfo.conninfo_to_dict(self._data_source)
        settings = cast("Any", {**KEEP_ALIVE, **given, "application_name": "airflow-outbox listen"})
        async with asyncio.timeout(_PATIENCE):
            connection = await psycopg.AsyncConnection.connect(
                **settings, autocommit=True, prepare_threshold=None, row_factory=tuple_row
            )
        try:
            yield connection
        finally:
            self._listening.clear()
            with contextlib.suppress(psycopg.Error):
                await connection.close()

    async def _attend(self, connection: psycopg.AsyncConnection[Any]) -> None:
        for attended in self._attended.values():
            attended.looked_at = attended.heard_at = _NEVER
        while self._attended:
            for attended in list(self._attended.values()):
                try:
                    with translated(attended.name):
                        await self._answer(connection, attended)
                except PostgresUnreachableError:
                    raise
                except OutboxError as error:
                    if not isinstance(error, OutboxMissingError) and not _is_refusal(error):
                        raise PostgresUnreachableError(str(error)) from error
                    attended.fail(error)
                    self._attended.pop(attended.name, None)
            await self._idle(connection)
            now = asyncio.get_running_loop().time()
            self._attended = {name: each for name, each in self._attended.items() if not each.is_deserted(now)}

    async def _answer(self, connection: psycopg.AsyncConnection[Any], attended: _Attended) -> None:
        """Look when it is time, and answer whoever can be answered."""
        loop = asyncio.get_running_loop()
        if attended.is_to_look(loop.time()):
            await self._look(connection, attended)
            if attended.channel not in self._listening:
                listen = sql.SQL("LISTEN {}").format(sql.Identifier(attended.channel))
                await self._execute(connection, listen, {})
                self._listening.add(attended.channel)
                await self._look(connection, attended)  # for what was announced before
        attended.answer()
        if due := attended.due(loop.time()):
            await self._judge(connection, attended, due)
        if loop.time() >= attended.report_at and (waiting := attended.unanswered()):
            begun = loop.time()
            await self._judge(connection, attended, waiting, counted=True)
            took = loop.time() - begun
            attended.report_at = loop.time() + max(_REPORT_INTERVAL, _REPORT_SHARE * took)

    async def _look(self, connection: psycopg.AsyncConnection[Any], attended: _Attended) -> None:
        attended.looked_at = asyncio.get_running_loop().time()
        if not attended.followers:
            attended.learn(Watermarks.read(await self._ask(connection, attended, "watermarks")))
            return
        rows = await self._ask(connection, attended, "account")
        stored = Watermarks.read(rows)
        attended.learn(stored)
        topics: dict[str, int] = {}
        for row in rows:
            for topic, count in row[5].items():
                topics[topic] = topics.get(topic, 0) + count
        for news in attended.followers:
            news.put_nowait(Account(stored, max(row[4] for row in rows), topics))

    async def _judge(
        self,
        connection: psycopg.AsyncConnection[Any],
        attended: _Attended,
        waiters: Collection[_Waiter],
        *,
        counted: bool = False,
    ) -> None:
        asked = {"transaction_ids": list({str(waiter.ticket.transaction_id) for waiter in waiters})}
        outcomes = {row[0]: Outcome(*row[1:]) for row in await self._ask(connection, attended, "outcomes", asked)}
        left: dict[int, int] | None = None
        if counted and attended.may_count is None:
            ((attended.may_count,),) = await self._ask(connection, attended, "may_count")
        if counted and attended.may_count:
            left = dict(await self._ask(connection, attended, "left", asked))
        attended.tell([waiter for waiter in waiters if not waiter.is_answered], outcomes, left)

    async def _ask(
        self,
        connection: psycopg.AsyncConnection[Any],
        attended: _Attended,
        statement: str,
        values: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        asked = {"outbox": attended.name.text(), **(values or {})}
        return await (await self._execute(connection, query(statement, attended.name), asked)).fetchall()

    async def _execute(
        self, connection: psycopg.AsyncConnection[Any], statement: Any, values: Mapping[str, Any]
    ) -> psycopg.AsyncCursor[Any]:
        loop = asyncio.get_running_loop()
        self._credit = min(_BURST, self._credit + (loop.time() - self._credited_at) * MOST_STATEMENTS) - 1
        self._credited_at = loop.time()
        if self._credit < 0:
            await asyncio.sleep(-self._credit / MOST_STATEMENTS)
        self.statements += 1
        async with asyncio.timeout(_PATIENCE):
            return await connection.execute(statement, values)

    async def _idle(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Wait for news, somebody new, or the time to look; take note of the news."""
        loop = asyncio.get_running_loop()
        loop.add_reader(connection.fileno(), self._wake.set)
        try:
            with contextlib.suppress(TimeoutError):
                has_new = any(attended.has_new() for attended in self._attended.values())
                async with asyncio.timeout(_GREETING_INTERVAL if has_new else _LOOK_INTERVAL):
                    await self._wake.wait()
        finally:
            loop.remove_reader(connection.fileno())
        self._wake.clear()
        async for note in connection.notifies(timeout=0):
            for attended in self._attended.values():
                if attended.watermarks is not None and attended.channel == note.channel:
                    attended.hear(note.payload, loop.time())


async def _told(news: asyncio.Queue[News | Exception]) -> News:
    told = await news.get()
    if isinstance(told, Exception):
        raise told
    return told


def _is_refusal(error: OutboxError) -> bool:
    return isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege | psycopg.errors.UndefinedColumn)


_listeners: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Listener]] = WeakKeyDictionary()


def listener(data_source: str) -> Listener:
    """The one listener of the running event loop for a database."""
    return _listeners.setdefault(asyncio.get_running_loop(), {}).setdefault(data_source, Listener(data_source))
