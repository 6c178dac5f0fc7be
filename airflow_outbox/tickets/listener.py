"""Wait for many tickets, and follow outboxes, over one connection to a database: for event loops, above all Airflow's
triggerer.

A leader announces every move of the watermark by NOTIFY as it deletes what it has published, and at least once a second
(`windows.purge_published`, `fence.heartbeat`). So a listener hears within milliseconds of a commit in Kafka. Only
Postgres knows whether a transaction was committed, and is asked once per connection. When the watermark sees the
transaction, one statement gets Postgres' last word:

- whether the watermark still counts
- whether the transaction has committed
- whether any of its records is parked: a record is parked before the watermark moves

Where no notifications come (a connection pooler swallows them, or nobody leads), the watermark is looked at once a
second.

The database's load does not grow with the tickets, since one statement asks for many. There are at most
`MOST_STATEMENTS` statements a second, and two more in the first second. While nothing happens, there are a few in ten
seconds.

A lost connection is made again, with the login as it is then; only the log tells of it. The new one asks again for
everything heard on the old one (`airflow_outbox.tickets.waiters`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg

from airflow_outbox.errors import OutboxError, OutboxMissingError, PostgresUnreachableError
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.published import (
    GAVE_UP,
    LastWord,
    Outcome,
    TicketState,
    TicketStatus,
    left_of,
    values_of,
)
from airflow_outbox.tickets.session import Connect, ListenerSession, connected
from airflow_outbox.tickets.waiters import GREETING_INTERVAL, LOOK_INTERVAL, Account, Awaited, Waiter
from airflow_outbox.tickets.watermarks import Watermarks
from airflow_outbox.values.records import Ticket

MOST_STATEMENTS = 17
_BURST = 2
_FIRST_REPORT = 2.0
_REPORT_INTERVAL = 10.0
_REPORT_SHARE = 20  # counting takes at most one part in this many of the time
_COUNTING = 2.0
_SHORTEST_DELAY = 0.1
_LONGEST_DELAY = 5.0

_log = logging.getLogger(__name__)
News = TypeVar("News")


class Listener:
    """Serves all waiters in one event loop for outboxes of one database; `listener` finds it.

    It has a connection while somebody waits, and for a while after. `data_source` is a libpq connection string,
    `connect` opens a session with it. `statements` counts the statements sent. `read_again`, which may block, returns
    the data source as it is now: it is asked whenever the connection has failed, for the password may be a new one.
    """

    def __init__(self, data_source: str, connect: Connect = connected) -> None:
        self.statements = 0
        self.read_again: Callable[[], str] | None = None
        self._connect = connect
        self._data_source = data_source
        self._attended: dict[OutboxName, Awaited] = {}
        self._wake = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._listening: set[str] = set()
        self._credit = float(_BURST)
        self._credited_at = 0.0

    async def statuses(
        self, name: OutboxName, ticket: Ticket, *, has_committed: bool = False
    ) -> AsyncGenerator[TicketStatus, None]:
        """Yield a ticket's status now and then. The last one says that its transaction is published, or some of it
        discarded.

        `has_committed` tells that it is known to have committed, which saves asking at first. Waits for a database that
        is away. Raises RolledBackError, TicketRefusedError, NoWatermarkError; OutboxMissingError, PostgresError when
        the role may not look.
        """
        waiter = Waiter(ticket, has_committed, asyncio.get_running_loop().time())
        with self._attending(name) as attended:
            attended.waiters[waiter] = None
            try:
                while not (waiter.is_answered and waiter.news.empty()):
                    yield await _told(waiter.news)
            finally:
                attended.waiters.pop(waiter, None)

    async def accounts(self, name: OutboxName) -> AsyncGenerator[Account, None]:
        """Yield an outbox's account, about once a second. Raises OutboxMissingError, PostgresError as `statuses`."""
        news: asyncio.Queue[Account | Exception] = asyncio.Queue()
        with self._attending(name) as attended:
            attended.followers.add(news)
            try:
                while True:
                    yield await _told(news)
            finally:
                attended.followers.discard(news)

    @contextmanager
    def _attending(self, name: OutboxName) -> Iterator[Awaited]:
        now = asyncio.get_running_loop().time()
        attended = self._attended.setdefault(name, Awaited(name, report_at=now + _FIRST_REPORT, left_at=now))
        self._wake.set()
        if self._serving is None:
            # In its own context: the first waiter's holds that waiter's log.
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
                    async with self._connect(self._data_source) as session:
                        delay = _SHORTEST_DELAY
                        await self._attend(session)
                except (psycopg.Error, PostgresUnreachableError, TimeoutError) as error:
                    reason = " ".join(str(error).split()) or "no answer"
                    _log.warning("Postgres can't be asked what is published: %s. Next try in %.1f s", reason, delay)
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, _LONGEST_DELAY)
                    await self._renew()
        except Exception as error:
            for attended in self._attended.values():
                attended.fail(error)
            raise
        finally:
            self._serving = None

    async def _renew(self) -> None:
        """Use the data source as it is now, if it can be read."""
        if self.read_again is None:
            return
        try:
            self._data_source = await asyncio.to_thread(self.read_again)
        except Exception as error:  # Airflow, and its secrets backends, raise what they like
            _log.warning("the connection to Postgres can't be read again: %s. It is used as it was", error)
        else:
            _listeners.get(asyncio.get_running_loop(), {}).setdefault(self._data_source, self)

    async def _attend(self, session: ListenerSession) -> None:
        for attended in self._attended.values():
            attended.begin()
        self._listening.clear()
        while self._attended:
            for attended in list(self._attended.values()):
                try:
                    with translated(attended.name):
                        await self._answer(session, attended)
                except PostgresUnreachableError:
                    raise
                except OutboxError as error:
                    if not isinstance(error, OutboxMissingError) and not _is_refusal(error):
                        raise PostgresUnreachableError(str(error)) from error
                    attended.fail(error)
                    self._attended.pop(attended.name, None)
            await self._idle(session)
            now = asyncio.get_running_loop().time()
            self._attended = {name: each for name, each in self._attended.items() if not each.is_deserted(now)}

    async def _answer(self, session: ListenerSession, attended: Awaited) -> None:
        """Look when it is time, and answer every waiter that can be answered."""
        loop = asyncio.get_running_loop()
        if attended.is_to_look(loop.time()):
            await self._look(session, attended)
            if attended.channel not in self._listening:
                await self._pay()
                await session.listen(attended.channel)
                self._listening.add(attended.channel)
                await self._look(session, attended)  # for what was announced before
        if due := attended.due(loop.time()):
            await self._judge(session, attended, due)
        waiting = [waiter for waiter in attended.answerable() if not waiter.is_parked]
        if waiting and (begun := loop.time()) >= attended.report_at:
            attended.report_at = begun + _REPORT_INTERVAL
            await self._judge(session, attended, waiting, counted=True)
            took = loop.time() - begun
            attended.report_at = loop.time() + max(_REPORT_INTERVAL, _REPORT_SHARE * took)

    async def _look(self, session: ListenerSession, attended: Awaited) -> None:
        attended.looked_at = asyncio.get_running_loop().time()
        if not attended.followers:
            attended.learn(Watermarks.read(await self._ask(session, attended, "watermarks")))
            return
        rows = await self._ask(session, attended, "account")
        stored = Watermarks.read(rows)
        attended.learn(stored)
        topics: dict[str, int] = {}
        for row in rows:
            for topic, count in row[11].items():
                topics[topic] = topics.get(topic, 0) + count
        for news in attended.followers:
            news.put_nowait(Account(stored, max(row[10] for row in rows), topics))

    async def _judge(
        self,
        session: ListenerSession,
        attended: Awaited,
        waiters: Collection[Waiter],
        *,
        counted: bool = False,
    ) -> None:
        """Tell the waiters how far their transactions are. One statement of each kind asks for all of them."""
        unknown = {waiter.ticket.transaction_id for waiter in waiters if not waiter.has_committed}
        if attended.is_doubtful:
            unknown.clear()  # Postgres' answer may be about others
        rows = await self._ask_of(session, attended, "outcomes", unknown)
        verdicts = attended.judge(waiters, {number: Outcome(*outcome) for number, *outcome in rows})
        words = LastWord.read(await self._ask_of(session, attended, "settled", _those(verdicts, TicketState.PUBLISHED)))
        if unconfirmed := {number for number, word in words.items() if not word.confirms}:
            attended.distrust(unconfirmed)
        waiting = _those(verdicts, TicketState.WAITING)
        left = await self._left(session, attended, waiting) if counted and waiting else {}
        for waiter, verdict in verdicts.items():
            number = waiter.ticket.transaction_id
            if isinstance(verdict, TicketStatus) and verdict.state is TicketState.PUBLISHED:
                if number in unconfirmed:
                    continue
                verdict = words[number].of(verdict)
            elif isinstance(verdict, TicketStatus) and verdict.state is TicketState.WAITING:
                verdict = replace(verdict, left=left.get(number))
            waiter.tell(verdict)

    async def _left(
        self, session: ListenerSession, attended: Awaited, transaction_ids: Collection[int]
    ) -> Mapping[int, int]:
        """Return how many records each has left, as far as the role may look and counting takes little time."""
        if attended.may_count is None:
            ((attended.may_count,),) = await self._ask(session, attended, "may_count")
        if not attended.may_count:
            return {}
        try:
            async with asyncio.timeout(_COUNTING):
                rows = await self._ask_of(session, attended, "left", transaction_ids)
        except (*GAVE_UP, TimeoutError):
            return {}
        return left_of(transaction_ids, rows)

    async def _ask_of(
        self,
        session: ListenerSession,
        attended: Awaited,
        statement: str,
        transaction_ids: Collection[int],
    ) -> Sequence[tuple[Any, ...]]:
        if not transaction_ids:
            return []
        assert attended.watermarks is not None
        values = values_of(transaction_ids, attended.watermarks.incarnation, attended.name)
        values["server"] = attended.watermarks.server
        return await self._ask(session, attended, statement, values)

    async def _ask(
        self,
        session: ListenerSession,
        attended: Awaited,
        statement: str,
        values: Mapping[str, Any] | None = None,
    ) -> Sequence[tuple[Any, ...]]:
        asked = {"outbox": attended.name.text(), **(values or {})}
        await self._pay()
        return await session.ask(statement, attended.name, asked)

    async def _pay(self) -> None:
        """Wait until a statement may be sent, and count it."""
        await self._afford()
        self._credit -= 1
        self.statements += 1

    async def _afford(self) -> None:
        """Wait until another statement may be sent."""
        now = asyncio.get_running_loop().time()
        self._credit = min(_BURST, self._credit + (now - self._credited_at) * MOST_STATEMENTS)
        self._credited_at = now
        if self._credit < 1:
            await asyncio.sleep((1 - self._credit) / MOST_STATEMENTS)
            self._credit, self._credited_at = 1.0, asyncio.get_running_loop().time()

    async def _idle(self, session: ListenerSession) -> None:
        """Wait for news, somebody new, or the time to look; take note of the news. All news until a statement may be
        sent share that statement.
        """
        with session.waking(self._wake.set), contextlib.suppress(TimeoutError):
            has_new = any(attended.has_new() for attended in self._attended.values())
            async with asyncio.timeout(GREETING_INTERVAL if has_new else LOOK_INTERVAL):
                await self._wake.wait()
        self._wake.clear()
        await self._afford()
        now = asyncio.get_running_loop().time()
        for channel, text in await session.news():
            for attended in self._attended.values():
                if attended.watermarks is not None and attended.channel == channel:
                    attended.hear(text, now)


async def _told(news: asyncio.Queue[News | Exception]) -> News:
    told = await news.get()
    if isinstance(told, Exception):
        raise told
    return told


def _those(verdicts: Mapping[Waiter, TicketStatus | OutboxError], state: TicketState) -> set[int]:
    """Return the transactions that are in this state."""
    return {
        verdict.ticket.transaction_id
        for verdict in verdicts.values()
        if isinstance(verdict, TicketStatus) and verdict.state is state
    }


def _is_refusal(error: OutboxError) -> bool:
    return isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege | psycopg.errors.UndefinedColumn)


_listeners: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Listener]] = WeakKeyDictionary()


async def listener(data_source: Callable[[], str]) -> Listener:
    """Return the running event loop's one listener for a database; `data_source` may block, and is asked again when
    the connection has failed.
    """
    now = await asyncio.to_thread(data_source)
    found = _listeners.setdefault(asyncio.get_running_loop(), {}).setdefault(now, Listener(now))
    found.read_again = data_source
    return found
