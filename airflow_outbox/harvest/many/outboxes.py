"""The outboxes of a list, in one process: finds them, holds those that rest, wakes those with records, in places.

The leader of a part of the list is elected (`harvest.many.process`). This keeps all outboxes of the parts that it
leads. An outbox that rests has a view of its own in its fence row, a heartbeat every two seconds, and nothing else. The
fence keeps its promises: to wake it is a take-over like any other.

No outbox waits for another one's trouble. If a look fails, it fails for one of them, and is tried again after ever
longer pauses.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.errors import NowAndThen
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.many import watch
from airflow_outbox.harvest.many.archives import tend_archives
from airflow_outbox.harvest.many.awake import AwakeOutbox
from airflow_outbox.harvest.many.choice import of_outbox
from airflow_outbox.harvest.many.connection_pool import ConnectionPool
from airflow_outbox.harvest.many.finder import OutboxFinder
from airflow_outbox.harvest.many.managed_outbox import ManagedOutbox
from airflow_outbox.harvest.many.names import ROLES
from airflow_outbox.harvest.ports import Events
from airflow_outbox.harvest.postgres_table import member_name
from airflow_outbox.harvest.protocol.places import moves
from airflow_outbox.harvest.worker_thread import Watchdog
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.resting import FoundOutbox, Looks, Rest, RestingTable, TakenUp


class Outboxes:
    """Those of one list. Every method that looks raises PostgresUnreachableError, and no other error of Postgres."""

    def __init__(
        self,
        config: HarvestConfig,
        *,
        events: Events,
        watching: ConnectionPool,
        shared: ConnectionPool,
        topics: TopicCache,
        watchdog: Watchdog,
        now: Callable[[], float],
    ) -> None:
        """`watching` is the one connection of `watch.opened`; `shared` are those for all else."""
        self._config = config
        self._events = events
        self._watching = watching
        self._shared = shared
        self._topics = topics
        self._watchdog = watchdog
        self._now = now
        self._told = NowAndThen()
        self._finder = OutboxFinder(config.outboxes, watching=watching, complain=self._complain, now=now)
        self._outboxes: dict[OutboxName, ManagedOutbox] = {}
        self._led: set[int] = set()
        self._moving: set[asyncio.Task[None]] = set()
        self._looks = Looks()
        self._published = 0  # by outboxes that rest now
        self._topics_published: Counter[str] = Counter()

    # What is there.

    async def find(self) -> None:
        """Find outboxes that are new, and those that are gone."""
        there = await self._finder.find()
        by_name = {found.name: found for found in there}
        for outbox in [each for each in self._outboxes.values() if by_name.get(each.name) != each.found]:
            self._outboxes.pop(outbox.name)
            self._events("gone", outbox=str(outbox.name))
            self._in_background(self._lay_down([outbox]))
        for found, outbox_id in await self._finder.identify(
            found for found in there if found.name not in self._outboxes
        ):
            self._add(found, outbox_id)

    def _add(self, found: FoundOutbox, outbox_id: UUID) -> None:
        table = RestingTable(found.name, outbox_id, member=member_name(), thresholds=self._config.thresholds)
        self._outboxes[found.name] = ManagedOutbox(found, table, role=outbox_id.int % ROLES)
        self._events("found", outbox=str(found.name), outbox_id=str(outbox_id))

    # Who leads.

    def lead(self, role: int) -> None:
        """This process leads a part of the list now."""
        self._led.add(role)

    async def stand_by(self, roles: Collection[int]) -> None:
        """Others lead these parts. Return when nothing is under way there."""
        self._led.difference_update(roles)
        await self._lay_down([outbox for outbox in self._outboxes.values() if outbox.role in roles])

    async def _lay_down(self, outboxes: Sequence[ManagedOutbox]) -> None:
        await asyncio.gather(*(self._rest(outbox) for outbox in outboxes if outbox.is_awake))
        held = [(outbox.table, outbox.view) for outbox in outboxes if outbox.view is not None]
        for outbox in outboxes:
            outbox.view = outbox.waits_since = None
        if held:
            await self._watching.call(lambda connection: watch.let_go(connection, held))

    @property
    def _own(self) -> list[ManagedOutbox]:
        return [outbox for outbox in self._outboxes.values() if outbox.role in self._led]

    # How they are.

    async def keep(self) -> None:
        """Tell operators that resting outboxes are held, take up those that nobody holds, and see what they ask for."""
        now = self._now()
        outboxes = [outbox for outbox in self._own if outbox.moving is None and now >= outbox.looking.at]
        views = [outbox.view or uuid4() for outbox in outboxes]
        # Nothing is written about one that is awake: no fence names the view that is made up for the look.
        held = [
            (outbox.table, view, outbox.view is not None or outbox.awake is not None)
            for outbox, view in zip(outboxes, views, strict=True)
        ]
        outcomes = await self._watching.call(lambda connection: watch.rested(connection, held))
        for outbox, view in zip(outboxes, views, strict=True):
            match outcomes[outbox.name]:
                case OutboxError() as error:
                    self._stay(outbox, str(error), outbox.looking.failed(self._now()))
                case TakenUp() as taken:
                    outbox.looking.succeeded()
                    outbox.stays = f"{taken.member} harvests it"
                case Rest() as rest:
                    outbox.looking.succeeded()
                    self._heard(outbox, rest, view)

    def _heard(self, outbox: ManagedOutbox, rest: Rest, view: UUID) -> None:
        if not outbox.is_awake:  # one that another member has taken over is taken up again when nobody is alive there
            outbox.view = view if rest.is_ours and outbox.role in self._led else None
        outbox.has_parked = rest.has_parked
        if rest.halted is not None:
            self._stay(outbox, f"halted: {rest.halted}. `airflow-outbox status` says what to do", None)
            if outbox.awake is not None and outbox.moving is None:
                self._begin(outbox, self._rest(outbox))
        else:
            outbox.stays = "paused" if rest.paused and outbox.awake is None else None

    async def look(self) -> None:
        """Look which of the resting outboxes have records. It always looks at all: the statements are prepared."""
        now = self._now()
        outboxes = [outbox for outbox in self._own if now >= outbox.looking.at]
        found, failures = await self._watching.call(
            lambda connection: watch.waiting(connection, self._looks, [outbox.table for outbox in outboxes])
        )
        for outbox in outboxes:
            if outbox.is_awake:
                continue
            if outbox.name in failures:
                self._stay(outbox, str(failures[outbox.name]), outbox.looking.failed(self._now()))
            elif outbox.name not in found and not outbox.has_parked:
                outbox.waits_since = None
            elif outbox.waits_since is None:
                outbox.waits_since = now

    async def are_empty(self) -> bool:
        """Whether no outbox of the list has a record."""
        tables = [outbox.table for outbox in self._outboxes.values()]
        found, failures = await self._watching.call(lambda connection: watch.waiting(connection, Looks(), tables))
        return bool(tables) and not found and not failures

    # Who is awake.

    def move(self) -> None:
        """Wake outboxes, and lay others to rest."""
        now = self._now()
        for outbox in self._outboxes.values():
            if outbox.awake is not None and outbox.moving is None and outbox.awake.trouble is not None:
                self._begin(outbox, self._rest(outbox))
        own = {outbox.name: outbox for outbox in self._own}
        due = moves(
            now,
            waiting={
                name: outbox.waits_since
                for name, outbox in own.items()
                if outbox.waits_since is not None and outbox.may_wake(now)
            },
            awake={outbox.name: outbox.awake.place for outbox in self._outboxes.values() if outbox.awake is not None},
            places=self._config.limits.awake_outboxes,
            rest_after=self._config.limits.rest_after,
        )
        for name in due.rest:
            if (idle := own.get(name)) is not None and idle.moving is None:
                self._begin(idle, self._rest(idle))
        for name in due.wake:
            self._begin(own[name], self._wake(own[name]))

    def _in_background(self, activity: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(activity)
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)
        return task

    def _begin(self, outbox: ManagedOutbox, activity: Coroutine[Any, Any, None]) -> None:
        task = outbox.moving = self._in_background(activity)

        def ended(_: object) -> None:
            if outbox.moving is task:
                outbox.moving = None

        task.add_done_callback(ended)

    async def _wake(self, outbox: ManagedOutbox) -> None:
        name = str(outbox.name)
        outbox.awake = AwakeOutbox(outbox.name, of_outbox(self._config, name), events=self._events, now=self._now)
        outbox.view = outbox.waits_since = None
        self._events("woken", outbox=name)
        try:
            complain = partial(self._complain, name)
            await outbox.awake.start(self._shared, self._topics, self._watchdog, complain)
        except Exception as error:
            outbox.awake = None
            text = str(error) if isinstance(error, OutboxError) else f"a bug in airflow-outbox: {error!r}"
            self._complain(name, text, outbox.waking.failed(self._now()))

    async def _rest(self, outbox: ManagedOutbox) -> None:
        if outbox.moving is not None and outbox.moving is not asyncio.current_task():
            await asyncio.gather(outbox.moving, return_exceptions=True)
        awake = outbox.awake
        if awake is None:
            return
        trouble = awake.trouble
        await awake.stop(self._config.limits.heartbeat_timeout)
        if outbox.awake is not awake:  # somebody else has waited, too
            return
        self._count(awake)
        self._published += awake.progress.published
        outbox.awake = None
        if trouble is None or awake.was_fenced:
            outbox.waking.succeeded()
        else:
            self._complain(str(outbox.name), trouble, outbox.waking.failed(self._now()))
        self._events("rests", outbox=str(outbox.name))

    def _stay(self, outbox: ManagedOutbox, reason: str, retry_in: float | None) -> None:
        outbox.stays, outbox.waits_since = reason, None
        self._complain(str(outbox.name), reason, retry_in)

    def _complain(self, outbox: str, error: str, retry_in: float | None = None) -> None:
        if self._told.passes(f"{outbox}: {error}"):
            self._events("error", outbox=outbox, error=error, retry_in=retry_in)

    # What was done.

    @property
    def published(self) -> int:
        """Records published by this process."""
        return self._published + sum(
            outbox.awake.progress.published for outbox in self._outboxes.values() if outbox.awake is not None
        )

    def report(self) -> None:
        """Tell how far all of them are."""
        awake = [outbox.awake for outbox in self._outboxes.values() if outbox.awake is not None]
        for each in awake:
            self._count(each)
        topics, self._topics_published = self._topics_published, Counter()
        own = self._own
        self._events(
            "progress",
            standing="leading" if self._led else "standby",
            view=None,
            paused=False,
            published=self.published,
            in_flight=sum(each.progress.in_flight for each in awake),
            rate=float(topics.total()),
            topics=dict(topics),
            outboxes={
                "found": len(self._outboxes),
                "awake": len(awake),
                "resting": sum(outbox.view is not None and outbox.stays is None for outbox in own),
                "staying": sum(outbox.stays is not None for outbox in own) + self._finder.unusable,
            },
        )

    def _count(self, awake: AwakeOutbox) -> None:
        self._topics_published.update(awake.progress.topics)
        awake.progress.topics.clear()

    async def tend_archives(self) -> None:
        """Make the archives' partitions for the days ahead, and drop old ones, once an hour each."""
        await tend_archives(
            self._own, self._shared, self._config.archive_retention, complain=self._complain, now=self._now
        )
