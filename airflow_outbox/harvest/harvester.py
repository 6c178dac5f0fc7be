"""A member of an outbox: follows the election, leads in terms of one view each, and reports what happens.

    standing by ── Lead ──► take over under a new view ──► a term ──┐
         ▲                            ▲                             ├─ asked to stand by: finish what is in flight, let
         go │                            └── failure: wait, a new view ┤ └────────── StandBy, or fenced by a successor
         ─────────────┘

A failure does not end the leadership: a new view makes its outcome irrelevant. Nothing is ever assumed to have failed.
But a leader that can't reach Postgres for the heartbeat timeout resigns: it leaves the group, so that another member
leads, and comes back when it has reached Postgres again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from uuid import UUID, uuid4

from airflow_outbox.errors import (
    FencedError,
    HistoryError,
    OutboxError,
    PostgresError,
    PostgresUnreachableError,
    RecordsRefusedError,
)
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.modes import Modes
from airflow_outbox.harvest.ports import Election, Events, Table
from airflow_outbox.harvest.protocol.election import Lead
from airflow_outbox.harvest.term import Term
from airflow_outbox.values.fence import Fence

SHARD = 0
_PROGRESS_INTERVAL = 1.0
_SHORTEST_DELAY = 0.1
_DELAY_AFTER_REFUSAL = 0.01
_LONGEST_DELAY = 5.0
_RETURN_INTERVAL = 0.5
_THROTTLED_INTERVAL = 10.0


class Harvester:
    """Runs until stopped. A bug, as opposed to an OutboxError, ends it with that exception."""

    def __init__(
        self,
        *,
        table: Table,
        modes: Modes,
        election: Election,
        limits: Limits,
        events: Events,
        new_view: Callable[[], UUID] = uuid4,
    ) -> None:
        self._table = table
        self._modes = modes
        self._election = election
        self._limits = limits
        self._events = events
        self._new_view = new_view
        self._term: Term | None = None
        self._leading: asyncio.Task[None] | None = None
        self._returning: asyncio.Task[None] | None = None
        self._views: list[UUID] = []  # of this leadership, since its last take-over that succeeded
        self._reached_at = 0.0  # when Postgres was last known to answer, on the loop's clock
        self._bug: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._throttled_until = float("-inf")  # when a quota is reported again
        self._recent: Counter[str] = Counter()  # by topic, since the last progress event
        self._reported = 0

    @property
    def published(self) -> int:
        """Records published and purged by this member."""
        return self._reported + self._recent.total()

    async def run(self) -> None:
        """Follow the election until `stop`."""
        progress = asyncio.create_task(self._report_every_second())
        following = asyncio.create_task(self._follow())
        try:
            await asyncio.wait({progress, following, self._bug}, return_when=asyncio.FIRST_COMPLETED)
            for future in (progress, following, self._bug):
                if future.done():
                    future.result()
        finally:
            tasks = [task for task in (progress, following, self._returning) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stand_by(0)
            await self._table.close()
            self._report()

    def throttled(self, seconds: float, *, client_id: str) -> None:
        """A quota of Kafka's now holds the producers back for so many seconds."""
        now = asyncio.get_running_loop().time()
        if now < self._throttled_until:
            return
        self._throttled_until = now + _THROTTLED_INTERVAL
        self._events("throttled", seconds=seconds, client_id=client_id)

    async def stop(self, grace: float) -> None:
        """Finish the records in flight, for at most `grace` seconds, leave the group, and end `run`."""
        await self._stand_by(grace)
        self._election.released(SHARD)
        await self._election.close()

    async def _follow(self) -> None:
        async for shard, change in self._election.changes():
            if isinstance(change, Lead):
                self._events("elected", shard=shard)
            else:
                self._events("stood_by", shard=shard, reason=change.reason)
            if shard != SHARD:
                self._election.released(shard)
            elif isinstance(change, Lead):
                await self._stand_by(0)
                self._leading = asyncio.create_task(self._lead())
                self._leading.add_done_callback(self._notice_bug)
            else:
                await self._stand_by(self._limits.heartbeat_timeout)
                self._election.released(SHARD)

    async def _lead(self) -> None:
        loop, delay = asyncio.get_running_loop(), _SHORTEST_DELAY
        self._reached_at = loop.time()
        self._views = []
        self._modes.begin_leadership()
        while True:
            view = self._new_view()
            published_before = self.published
            try:
                if await self._run_term(view):
                    await self._leave()
                    self._hand_over(view)
                return
            except FencedError:
                self._views = []
                self._events("fenced", shard=SHARD, view=str(view))
                self._election.fenced(SHARD)
                self._election.released(SHARD)
                return
            except OutboxError as error:
                if asyncio.current_task() is not self._leading:  # asked to stand by: another view would be a duel
                    if not await self._is_followed(view):
                        self._events("error", error=str(error), retry_in=None)
                    return
                # A refusal narrows the next try: few terms are needed, and others should not wait long for them.
                if isinstance(error, RecordsRefusedError):
                    delay = _DELAY_AFTER_REFUSAL
                elif self.published > published_before:
                    delay = _SHORTEST_DELAY
                self._events("error", error=str(error), retry_in=delay)
                if not isinstance(error, PostgresUnreachableError):
                    self._reached_at = loop.time()
                    with contextlib.suppress(OutboxError):
                        if isinstance(error, HistoryError):
                            await self._table.halt(view, error.difference)
                        if not isinstance(error, RecordsRefusedError):  # those are parked within moments
                            await self._table.note_error(view, str(error))
                elif loop.time() - self._reached_at > self._limits.heartbeat_timeout:
                    self._resign(str(error))
                    return
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _run_term(self, view: UUID) -> bool:
        """Lead under one view until asked to stop. Return whether operators have asked for another leader."""
        fence = await self._take_over(view)
        self._events("view", shard=SHARD, view=str(view))
        try:
            async with aclosing(self._modes.terms(view, fence, self._recent)) as terms:
                async for term in terms:
                    self._term = term
                    await term.run()
                    if term.request.handover or asyncio.current_task() is not self._leading:
                        return term.request.handover
            return False
        finally:
            self._term = None
            self._reached_at = asyncio.get_running_loop().time()

    async def _take_over(self, view: UUID) -> Fence:
        """Write the view into the fence row: the first time in this leadership after any view, later only after one of
        this leadership, so that a successor is never fenced in turn.
        """
        after = self._views
        self._views = [*after, view] if after else []
        fence = await self._table.take_over(view, after=after)
        self._views = [view]
        self._reached_at = asyncio.get_running_loop().time()
        return fence

    async def _is_followed(self, view: UUID) -> bool:
        """Whether a successor has taken over already. That fails all work under way."""
        try:
            await self._table.require_fence(view)
        except FencedError:
            return True
        except OutboxError:
            pass
        return False

    def _resign(self, reason: str) -> None:
        """Let others lead until this member reaches Postgres again."""

        async def reached() -> None:
            await self._table.is_empty()

        self._leave_for_a_while(reason, lambda: self._succeeds(reached))

    def _hand_over(self, view: UUID) -> None:
        """Let another member lead. Come back when it does, or after a while if there is none."""

        async def followed() -> None:
            with contextlib.suppress(FencedError):
                await self._table.require_fence(view)
                raise PostgresError("not followed yet")

        patience = self._limits.session_timeout
        self._leave_for_a_while(
            "a handover was requested", lambda: asyncio.wait_for(self._succeeds(followed), patience)
        )

    def _leave_for_a_while(self, reason: str, coming_back: Callable[[], Awaitable[None]]) -> None:
        self._events("resigned", reason=reason)
        self._election.resign(reason)
        self._election.released(SHARD)
        self._returning = asyncio.create_task(self._return(coming_back))

    async def _return(self, coming_back: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(TimeoutError):
            await coming_back()
        self._events("rejoined")
        self._election.rejoin()

    @staticmethod
    async def _succeeds(attempt: Callable[[], Awaitable[None]]) -> None:
        """Wait until an attempt raises no OutboxError."""
        while True:
            await asyncio.sleep(_RETURN_INTERVAL)
            with contextlib.suppress(OutboxError):
                await attempt()
                return

    async def _stand_by(self, grace: float) -> None:
        """End the leadership: let the term finish for `grace` seconds, then abandon it."""
        leading, self._leading = self._leading, None
        if leading is None:
            return
        if self._term is not None:
            self._term.stop()
            await asyncio.wait({leading}, timeout=grace)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await self._leave()

    async def _leave(self) -> None:
        """Let operators see that nobody leads any more, if the last take-over is known to have succeeded."""
        views, self._views = self._views, []
        if len(views) == 1:
            with contextlib.suppress(OutboxError):
                await self._table.leave(views[0])

    def _notice_bug(self, leading: asyncio.Task[None]) -> None:
        if not leading.cancelled() and (error := leading.exception()) is not None and not self._bug.done():
            self._bug.set_exception(error)

    async def _report_every_second(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_INTERVAL)
            self._report()

    def _report(self) -> None:
        topics = dict(self._recent)
        self._recent.clear()
        self._reported += sum(topics.values())
        self._events(
            "progress",
            standing=self._election.standing(SHARD).value,
            view=str(self._term.view) if self._term else None,
            paused=self._term.request.paused if self._term else False,
            published=self.published,
            in_flight=self._term.in_flight if self._term else 0,
            rate=sum(topics.values()) / _PROGRESS_INTERVAL,
            topics=topics,
        )
