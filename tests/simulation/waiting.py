"""Whoever waits for tickets in the simulated world, by the real listener over simulated sessions; and its judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from simulation.checker import Committed, Seen
from simulation.locking import Backend
from simulation.loop import ELSEWHERE
from simulation.network import Link, Network
from simulation.postgres import OUTBOX_ID, SECRET
from simulation.statements import Server
from simulation.verdicts import Verdict

from airflow_outbox.errors import OutboxError, PostgresUnreachableError, TicketRefusedError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets import listener
from airflow_outbox.tickets.published import TicketState, TicketStatus
from airflow_outbox.tickets.session import AnswerRows
from airflow_outbox.values.records import Ticket

NAME = OutboxName.parse("outbox")
_PATIENCE = 3.0
_POOLED = 0.2  # the share of connections behind which a pooler exchanges the server without a word


@dataclass(eq=False, slots=True)
class Wait:
    """Somebody who waits for a ticket: since when, what its transaction wrote, whether its commit was acknowledged,
    whether a restore has undone it that nothing in Postgres tells of, and what was told, when. Times are the world's
    count.
    """

    ticket: Ticket
    values: tuple[str, ...]
    came_at: int = 0
    is_acknowledged: bool = False
    is_undone: bool = False
    told: list[tuple[int, TicketStatus | Exception]] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        last = self.told[-1][1] if self.told else None
        return isinstance(last, Exception) or (last is not None and last.is_final)


class Waiting:
    """All who wait, in a process of their own: they have one listener."""

    def __init__(self, server: Server, network: Network, tick: Callable[[], int]) -> None:
        self.waits: list[Wait] = []
        self._shown: list[tuple[int, int]] = []  # when Postgres showed the outbox in which incarnation
        self._server = server
        self._network = network
        self._tick = tick
        self._link = Link(network, PostgresUnreachableError, patience=_PATIENCE)
        self._listener = listener.Listener("simulated", self._connected)
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, ticket: Ticket, values: Sequence[str], *, has_committed: bool) -> Wait:
        wait = Wait(ticket, tuple(values), self._tick())
        self.waits.append(wait)
        self._tasks.append(asyncio.create_task(self._follow(wait, has_committed)))
        return wait

    def undo(self) -> None:
        """The database was restored to an earlier time, and nothing in it tells so: its timeline is the same, or no
        leader has recorded one yet. Nobody can promise what is told of the transactions that are gone now.
        """
        state = self._server.database.state
        for wait in self.waits:
            number = wait.ticket.transaction_id
            will_end = number in state.open and not wait.is_acknowledged  # else its end was restored away
            wait.is_undone |= not (state.outcomes.get(number) or will_end)

    async def end(self, patience: float) -> None:
        """Wait until all are answered, at most for so many seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while not all(wait.is_answered for wait in self._acknowledged) and loop.time() < deadline:
            await asyncio.sleep(0.25)

    @property
    def _acknowledged(self) -> list[Wait]:
        return [wait for wait in self.waits if wait.is_acknowledged and not wait.is_undone]

    async def _follow(self, wait: Wait, has_committed: bool) -> None:
        try:
            stream = self._listener.statuses(NAME, wait.ticket, has_committed=has_committed)
            async with aclosing(stream) as statuses:
                async for status in statuses:
                    wait.told.append((self._tick(), status))
        except Exception as error:  # what is none of the outbox's errors is complained of
            wait.told.append((self._tick(), error))

    @asynccontextmanager
    async def _connected(self, _: str) -> AsyncIterator[SimulatedSession]:
        is_pooled = self._network.random.random() < _POOLED
        session = SimulatedSession(self._server, self._link, is_pooled=is_pooled, shown=self._note_shown)
        await session.connect()
        try:
            yield session
        finally:
            session.close()

    def _note_shown(self, incarnation: int) -> None:
        self._shown.append((self._tick(), incarnation))

    def _was_refused(self, wait: Wait, *, rightly: bool) -> bool:
        """Whether somebody was refused: rightly, if Postgres has shown another incarnation while they waited, which a
        restore may have undone.
        """
        told_at, told = wait.told[-1] if wait.told else (0, None)
        return isinstance(told, TicketRefusedError) and rightly == any(
            wait.came_at < at < told_at and incarnation != wait.ticket.incarnation for at, incarnation in self._shown
        )

    def complaints(
        self, histories: Sequence[Committed], sightings: Sequence[Seen], *, incarnation: int | None
    ) -> Iterator[str]:
        """The faults.

        All who wait for a ticket of `incarnation` ought to have been told by now, and all others that they never will
        be. So may those who waited while the outbox was in another one. None: nobody has to be told anything.
        """
        truncated = {value for history in histories for value in history.truncated}
        discarded = {value for history in histories for value in history.discarded}
        readable = {sighting.value: sighting.visible_at for sighting in reversed(sightings)}
        for wait in self._acknowledged:
            yield from _false(wait, [value for value in wait.values if value not in truncated], readable)
            errors = [told for _, told in wait.told if isinstance(told, Exception)]
            yield from (f"{Verdict.BUG}: {error!r}" for error in errors if not isinstance(error, OutboxError))
            if incarnation is not None:
                is_due = wait.ticket.incarnation == incarnation and not discarded.intersection(wait.values)
                yield from _missing(wait, is_due=is_due and not self._was_refused(wait, rightly=True))
            if self._was_refused(wait, rightly=False):
                yield f"{Verdict.MISSING_PUBLISHED}: {wait.ticket} was refused by what was shown before it came"


def _false(wait: Wait, values: Sequence[str], readable: Mapping[str, int]) -> Iterator[str]:
    for at, status in wait.told:
        if isinstance(status, TicketStatus) and status.state in (TicketState.PUBLISHED, TicketState.PARKED):
            early = [value for value in values if readable.get(value, at + 1) > at]
            if len(early) > status.parked + status.discarded:
                yield f"{Verdict.FALSE_PUBLISHED}: {wait.ticket} was told '{status}', and nobody could read {early}"


def _missing(wait: Wait, *, is_due: bool) -> Iterator[str]:
    last = wait.told[-1][1] if wait.told else None
    if not wait.is_answered:
        yield f"{Verdict.MISSING_PUBLISHED}: {wait.ticket} was told '{last}' last"
    elif is_due and isinstance(last, Exception):
        yield f"{Verdict.MISSING_PUBLISHED}: {wait.ticket} was refused: {last}"


class SimulatedSession:
    """A listener's session with the simulated Postgres.

    An announcement travels like an answer; while the way is cut, it is lost. Behind a pooler each statement finds a
    server as long as there is one, and announcements come, or none ever does.
    """

    def __init__(self, server: Server, link: Link, *, is_pooled: bool, shown: Callable[[int], None]) -> None:
        """`shown` is told in which incarnation the database shows the outbox."""
        self._server = server
        self._link = link
        self._is_pooled = is_pooled
        self._shown = shown
        self._backend: Backend | None = None
        self._channels: set[str] = set()
        self._is_passed_on = link.network.random.random() < 0.5
        self._wake: Callable[[], None] | None = None
        self._arrived: list[tuple[str, str]] = []
        self._latest = 0.0

    async def connect(self) -> None:
        await self._run("connect", lambda: None)
        self._backend = None if self._is_pooled else self._server.connect()
        self._server.database.on_announce.append(self._announced)

    def close(self) -> None:
        self._server.database.on_announce.remove(self._announced)

    async def ask(self, statement: str, name: OutboxName, values: Mapping[str, Any]) -> AnswerRows:
        rows: AnswerRows = await self._run(statement, lambda: getattr(self, f"_{statement}")(values))
        return rows

    async def listen(self, channel: str) -> None:
        def effect() -> None:
            self._channels.add(channel)

        await self._run("listen", effect)

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        self._wake = wake
        try:
            yield
        finally:
            self._wake = None

    async def news(self) -> Sequence[tuple[str, str]]:
        arrived, self._arrived = self._arrived, []
        return arrived

    async def _run(self, name: str, effect: Callable[[], object]) -> Any:
        return await self._link.ask(name, lambda answer: self._server.run(self._backend, answer, effect))

    def _announced(self, channel: str, text: str) -> None:
        is_heard = self._is_passed_on if self._backend is None else self._backend.is_alive
        if channel in self._channels and is_heard and not self._link.cut:
            loop = asyncio.get_running_loop()
            self._latest = max(self._latest, loop.time() + self._link.network.delay())
            loop.call_at(self._latest, self._arrive, channel, text, context=ELSEWHERE)

    def _arrive(self, channel: str, text: str) -> None:
        self._arrived.append((channel, text))
        if self._wake is not None:
            self._wake()

    # The statements of tickets.sql

    def _watermarks(self, _: Mapping[str, Any]) -> AnswerRows:
        database, state = self._server.database, self._server.database.state
        doubt = database.doubt
        self._shown(state.fence.incarnation)
        rows = []
        for shard, row in sorted(state.present.items()):
            watermark = row.flushed.watermark
            shown = str(watermark) if watermark is not None and doubt is None else None
            of_many = shard, state.layout.number, row.slots is not None
            whole = OUTBOX_ID, state.fence.incarnation, state.fence.delivery
            rows.append((*whole, shown, doubt, str(database.life), SECRET, *of_many))
        return rows

    def _outcomes(self, values: Mapping[str, Any]) -> AnswerRows:
        database = self._server.database
        return [(int(number), database.outcome(int(number)), None, None) for number in values["transaction_ids"]]

    def _settled(self, values: Mapping[str, Any]) -> AnswerRows:
        database, state = self._server.database, self._server.database.state
        is_same = database.doubt is None and state.fence.incarnation == values["incarnation"]
        holds = is_same and values["server"] == str(database.life)
        found = []
        for number in map(int, values["transaction_ids"]):
            aside = [row.discarded for row in state.parked.values() if row.transaction_id == number]
            found.append((number, holds, database.outcome(number), aside.count(False), aside.count(True), [], []))
        return found

    def _may_count(self, _: Mapping[str, Any]) -> AnswerRows:
        return [(False,)]
