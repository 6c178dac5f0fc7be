"""Bugs of the listener, and of what it asks of Postgres: a waiter is told 'published' falsely, or never."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from simulation.waiting import SimulatedSession

from airflow_outbox.tickets.listener import Listener
from airflow_outbox.tickets.session import AnswerRows, ListenerSession
from airflow_outbox.tickets.waiters import NEVER, Awaited, Waiter
from airflow_outbox.tickets.watermarks import Watermarks


class AsksParkedFirst(Listener):
    """Asks which records are parked when a waiter comes, and not once the watermark sees the transaction."""

    _asked: WeakKeyDictionary[ListenerSession, dict[int, tuple[Any, ...]]]

    async def _judge(
        self, session: ListenerSession, attended: Awaited, waiters: Collection[Waiter], *, counted: bool = False
    ) -> None:
        known = self.__dict__.setdefault("_asked", WeakKeyDictionary()).setdefault(session, {})
        new = {waiter.ticket.transaction_id for waiter in waiters} - known.keys()
        for row in await super()._ask_of(session, attended, "settled", new):
            known[row[0]] = row
        await super()._judge(session, attended, waiters, counted=counted)

    async def _ask_of(
        self, session: ListenerSession, attended: Awaited, statement: str, transaction_ids: Collection[int]
    ) -> AnswerRows:
        if statement != "settled":
            return await super()._ask_of(session, attended, statement, transaction_ids)
        known = self._asked[session]
        return [(number, True, "committed", *known[number][3:]) for number in sorted(transaction_ids)]


class BelievesOldNews(Awaited):
    """Keeps what was heard on a connection that is lost."""

    def begin(self) -> None:
        self.looked_at = self.heard_at = NEVER

    def learn(self, found: Watermarks) -> None:
        known = self.watermarks
        for shard, watermark in enumerate(known.shards if known is not None else ()):
            if known is not None and watermark is not None and known.incarnation == found.incarnation:
                found = found.later(shard, watermark)
        self.watermarks = found


class RefusesByOldLooks(Awaited):
    """Refuses a ticket by what was looked at before its waiter came."""

    def _is_too_new(self, waiter: Waiter) -> bool:
        return self.watermarks is None


class RefusesEarlierByOldLooks(Awaited):
    """Does so only to a ticket of an earlier incarnation: an adoption may have been undone by a restore since."""

    def _is_too_new(self, waiter: Waiter) -> bool:
        known = self.watermarks
        return super()._is_too_new(waiter) and (known is None or waiter.ticket.incarnation > known.incarnation)


class NeverLooks(Awaited):
    """Looks once a connection, and relies on announcements then."""

    def is_to_look(self, now: float) -> bool:
        return self.looked_at == NEVER


class ShowsAnyHistory(SimulatedSession):
    """Shows the watermark in whatever history the database is, and while harvesting is halted."""

    def _watermarks(self, values: Mapping[str, Any]) -> AnswerRows:
        fence = self._server.database.state.fence
        [(outbox_id, incarnation, delivery, _, _, *others)] = super()._watermarks(values)
        watermark = fence.flushed.watermark
        shown = None if watermark is None else str(watermark)
        return [(outbox_id, incarnation, delivery, shown, None, *others)]

    def _settled(self, values: Mapping[str, Any]) -> AnswerRows:
        return [(number, True, *word) for number, _, *word in super()._settled(values)]
