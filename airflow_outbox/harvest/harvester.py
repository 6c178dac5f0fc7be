"""A member of an outbox: follows the election, and leads each shard that it is given (`harvest.leadership`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.absence import Absence
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.layout_change import NO_VIEWS, LayoutChange, Reshard
from airflow_outbox.harvest.leadership import SHARD, Attach, Leadership
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.modes import Modes
from airflow_outbox.harvest.ports import Election, Events, Table
from airflow_outbox.harvest.protocol.election import Change, Standing
from airflow_outbox.harvest.protocol.handover import StandIn

_PROGRESS_INTERVAL = 1.0
_THROTTLED_INTERVAL = 10.0
_HANDOVER_INTERVAL = 0.5


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's table, its modes, and (of the first one only) a way to change their number, and the clusters.

    A backup that can't be reached is detached after `detach_after` seconds (None: never).
    """

    number: int
    table: Table
    modes: Modes
    reshard: Reshard | None = None
    attach: Attach | None = None
    detach_after: float | None = None


class Harvester:
    """Runs until stopped. A bug, as opposed to an OutboxError, ends it with that exception.

    `layout_changed` is set when it ends because the outbox has another number of shards.
    """

    def __init__(
        self,
        *,
        shards: Sequence[Shard],
        election: Election,
        limits: Limits,
        events: Events,
        measures: Measures,
        leadership: Callable[..., Leadership] = Leadership,
        new_view: Callable[[], UUID] = uuid4,
    ) -> None:
        """`limits` are those of each shard."""
        self.layout_changed = LayoutChange()
        self._election = election
        self._events = events
        self._measures = measures
        self._absence = Absence(election, events)
        self._leaderships = {
            shard.number: leadership(
                table=shard.table,
                modes=shard.modes,
                election=election,
                absence=self._absence,
                limits=limits,
                events=events if len(shards) == 1 else of_shard(events, shard.number),
                measures=measures,
                layout_changed=self.layout_changed,
                shard=shard.number,
                is_alone=len(shards) == 1,
                reshard=shard.reshard,
                attach=shard.attach,
                detach_after=shard.detach_after,
                new_view=new_view,
            )
            for shard in shards
        }
        several = self._leaderships if len(shards) > 1 else ()
        self._changes = {number: asyncio.Queue[Change | StandIn]() for number in several}
        self._first = shards[0].table
        self._throttled_until = float("-inf")  # when a quota is reported again

    @property
    def published(self) -> int:
        """Records published and purged by this member."""
        return self._measures.published

    async def run(self, views: Mapping[int, UUID] = NO_VIEWS) -> None:
        """Follow the election until `stop`, or until the layout changes.

        `views` are those that this member has written with the layout. It leads these shards at once: to join the group
        takes seconds (Kafka's `group.initial.rebalance.delay.ms`), and nothing would be published meanwhile. Whoever
        the group elects takes over as from any leader.
        """
        stood_in = [lead.follow(StandIn(views[shard])) for shard, lead in self._leaderships.items() if shard in views]
        await _together(stood_in)
        progress = asyncio.create_task(self._report_every_second())
        following = [asyncio.create_task(self._follow())]
        following += [asyncio.create_task(self._follow_one(number)) for number in self._changes]
        if self._changes:
            following.append(asyncio.create_task(self._mind_handovers()))
        changed = asyncio.create_task(self.layout_changed.wait())
        bugs = [leadership.bug for leadership in self._leaderships.values()]
        ends: list[asyncio.Future[None]] = [progress, *following, *bugs]
        waited: list[asyncio.Future[Any]] = [changed, *ends]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for future in ends:
                if future.done():
                    future.result()
        finally:
            tasks = [progress, changed, *following]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._absence.end()
            await _together([leadership.close() for leadership in self._leaderships.values()])
            self._report()

    def throttled(self, seconds: float, *, client_id: str) -> None:
        """A quota of Kafka's now holds the producers back for this many seconds."""
        now = asyncio.get_running_loop().time()
        if now < self._throttled_until:
            return
        self._throttled_until = now + _THROTTLED_INTERVAL
        self._events("throttled", seconds=seconds, client_id=client_id)

    async def stop(self, grace: float) -> None:
        """Finish the records in flight, for at most `grace` seconds, leave the group, and end `run`."""
        await _together([leadership.stop(grace) for leadership in self._leaderships.values()])
        await self._election.close()

    async def _follow(self) -> None:
        async for number, change in self._election.changes():
            if number in self._changes:
                self._changes[number].put_nowait(change)
            elif number in self._leaderships:
                await self._leaderships[number].follow(change)
            else:
                self._election.released(number)

    async def _follow_one(self, number: int) -> None:
        """Each shard follows by itself: none waits until another has stood by."""
        while True:
            await self._leaderships[number].follow(await self._changes[number].get())

    async def _mind_handovers(self) -> None:
        """Stand in for leaders that hand a shard over, for one at a look, so that other members get some, too."""
        while True:
            await asyncio.sleep(_HANDOVER_INTERVAL)
            with contextlib.suppress(OutboxError):  # what leaders do reports what is wrong
                for look in await self._first.looks():
                    leadership, changes = self._leaderships.get(look.shard), self._changes.get(look.shard)
                    if leadership is None or changes is None or not changes.empty():
                        continue
                    if (change := leadership.due(look)) is not None:
                        changes.put_nowait(change)
                        if isinstance(change, StandIn):
                            break

    async def _report_every_second(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_INTERVAL)
            self._report()

    def _report(self) -> None:
        topics = self._measures.take_recent()
        terms = {number: each.term for number, each in self._leaderships.items() if each.term is not None}
        standings = {number: self._election.standing(number) for number in self._leaderships}
        first = next(iter(terms.values()), None)
        self._events(
            "progress",
            standing=(Standing.LEADER if terms or Standing.LEADER in standings.values() else standings[SHARD]).value,
            view=str(first.view) if first else None,
            paused=first.request.paused if first else False,
            published=self.published,
            in_flight=sum(term.in_flight for term in terms.values()),
            rate=sum(topics.values()) / _PROGRESS_INTERVAL,
            topics=topics,
        )


async def _together(activities: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; a single one costs no task."""
    if len(activities) == 1:
        await activities[0]
    else:
        await asyncio.gather(*activities)


def of_shard(events: Events, shard: int) -> Events:
    """Return the same, which also says of each event which shard it is about."""

    def report(event: str, /, **fields: object) -> None:
        events(event, **{"shard": shard, **fields})

    return report
