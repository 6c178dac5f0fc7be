"""Histories: what befalls a world, drawn from a seed; the same seed is the same history.

Members are killed, stopped, continued, cut off and asked to end; Postgres crashes; the group rebalances; the ledger is
compacted; messages are lost and late. Then all trouble ends, and everything has to be published within bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from simulation.ambush import SUCCESSION, WORK, Ambush, Moment, Strike
from simulation.applications import Applications
from simulation.checker import Committed, complaints, seen
from simulation.kafka import LEDGER, Broker
from simulation.loop import simulate
from simulation.postgres import Change
from simulation.waiting import Waiting
from simulation.world import SOUND, Design, Member, World

from airflow_outbox.errors import HistoryError
from airflow_outbox.harvest.protocol.parking import MOST_LANES, ParkedLanes
from airflow_outbox.values.extents import TopicAndPartition

_TROUBLE = 0.02
_ACTS = 10
_REMEDY = str(HistoryError("")).removeprefix(". ")
_AMBUSHES = 4
_LONGEST_STOP = 8.0
_MEMBERS = 3
_PATIENCE = 90.0  # the longest that draining may take once trouble has ended, in seconds
_ANSWERED_WITHIN = 30.0  # when everything has been published, the longest that those wait who wait for a ticket
_AFTERMATH = 20.0  # by then nothing is on its way any more, in seconds


@dataclass(slots=True)
class Outcome:
    """The faults of a history, and how large it was."""

    seed: int
    complaints: list[str]
    published: int = 0
    seconds: float = 0.0
    steps: list[str] = field(default_factory=list)
    log: Sequence[Change] = ()
    """The log of Postgres."""
    readable: Mapping[TopicAndPartition, Mapping[int, int]] = field(default_factory=dict)
    """When the offsets of each partition became readable, in the world's count."""


class History:
    """One history of a world."""

    def __init__(self, world: World, design: Design, *, focused: bool, transactions: int = 45) -> None:
        self.world = world
        self.design = design
        self.members: list[Member] = []
        self.steps: list[str] = []
        self.waiting = Waiting(world.server, world.network, world.tick)
        self.applications = Applications(world, self.waiting, transactions=transactions)
        self.ambush: Ambush | None = None
        self._focused = focused
        self._background: list[asyncio.Task[Any]] = []

    async def run(self) -> list[str]:
        """Live through it; what was wrong."""
        applications = self.applications
        self._start()
        self._start()
        writing = asyncio.create_task(applications.run())
        flushing = asyncio.create_task(applications.flush_now_and_then())
        await self._disturb()
        await self._heal()
        await writing
        flushing.cancel()
        return await self.end()

    async def end(self) -> list[str]:
        """Wait until everything is published, let all members go, and judge."""
        self.world.database.flush()
        drained = await self.drain()
        if drained:
            await self.waiting.end(_ANSWERED_WITHIN)
        await asyncio.gather(*(member.stop() for member in list(self.world.members)))
        await asyncio.sleep(_AFTERMATH)
        self.world.database.flush()
        return self.judge(drained=drained)

    async def _disturb(self) -> None:
        if self._focused:
            await self._be_ambushed()
        else:
            await self._live()

    async def _live(self) -> None:
        """Anything may happen at any time."""
        for _ in range(_ACTS):
            await asyncio.sleep(2.5 * self.world.random.random())
            self._act()

    async def _be_ambushed(self) -> None:
        """One thing happens at a time, to members at work."""
        for _ in range(_AMBUSHES):
            await asyncio.sleep(3 * self.world.random.random())
            self._ambush()
            deadline = asyncio.get_running_loop().time() + 2 * _LONGEST_STOP
            while self.ambush and not self.ambush.is_over and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.25)
            if len(self.world.members) < 2:
                self._start()

    def judge(self, *, drained: bool) -> list[str]:
        """The faults. `drained` tells whether everything was published in time."""
        found = [complaint for broker in self.world.counting for complaint in self._complaints(broker, drained=drained)]
        if not drained:
            found.append(f"stuck: {len(self.world.database.state.rows)} records left")
        for member in self.members:
            found += _duels(member)
            found += [f"false alarm: {error}" for error in history_errors(member)]
        is_told = drained and self.design.delivery == "exactly_once"
        return found + self.told(incarnation=1 if is_told else None) + self.bugs()

    def _complaints(self, broker: Broker, *, drained: bool) -> list[str]:
        """The faults that a cluster shows."""
        return complaints(
            self.world.database,
            broker,
            exactly_once=self.design.delivery == "exactly_once",
            atomic=self.design.atomic,
            drained=drained,
            by_markers=self._is_sharded,
        )

    def _witnesses(self) -> Sequence[Broker]:
        """The clusters that have counted all the time."""
        return self.world.counting

    @property
    def _is_sharded(self) -> bool:
        return self.design.shards is not None

    def told(self, *, incarnation: int | None) -> list[str]:
        """Wrong answers to those who wait for tickets; see `Waiting.complaints`."""
        database = self.world.database
        histories = [Committed.read(log) for log in (database.log, *database.past)]
        return [
            complaint
            for broker in self._witnesses()
            for complaint in self.waiting.complaints(
                histories, seen(broker, by_markers=self._is_sharded), incarnation=incarnation
            )
        ]

    def bugs(self) -> list[str]:
        """The errors that have ended members, and are not the outbox's own."""
        ended = [member.running for member in self.members if member.running.done() and not member.running.cancelled()]
        return [f"bug: {running.exception()!r}" for running in ended if running.exception()]

    def has_ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        state = self.world.database.state
        return not state.rows and not state.open

    def _act(self) -> None:
        acts = (
            self._start,
            self._kill,
            self._stop,
            self._freeze,
            self._freeze,
            self._cut,
            self._cut,
            self._crash,
            self._crash,
            self._rebalance,
            self._compact,
            *(self._ambush,) * 6,
        )
        act = self.world.random.choice(acts)
        self.steps.append(f"{asyncio.get_running_loop().time():.2f} {act.__name__.strip('_')}")
        act()

    def _rebalance(self) -> None:
        self.world.group.rebalance()

    def _start(self) -> None:
        if len(self.world.members) < _MEMBERS:
            self.members.append(Member(self.world, self.design))

    def _kill(self) -> None:
        self._drawn().kill()

    def _stop(self) -> None:
        member = self._drawn()
        if not member.process.stopped:
            self._background.append(member.stop())

    def _freeze(self) -> None:
        member = self._drawn()
        if not member.process.stopped:
            member.process.stop()
            self._after(6.0, member.process.go_on)

    def _cut(self) -> None:
        link = self.world.random.choice(self._drawn().links)
        link.cut = True

        def mend() -> None:
            link.cut = False

        self._after(6.0, mend)

    def _crash(self) -> None:
        database = self.world.database
        if database.up:
            database.crash()
            database.up = False

            def come_up() -> None:
                database.up = True

            self._after(1.5, come_up)

    def _ambush(self) -> None:
        if self.ambush is not None:
            if self.ambush.victim is not None and not self.ambush.is_over:
                return
            self.ambush.call_off()
        draw, fraction = self.world.random.choice, self.world.random.random
        strike = draw((Strike.STOP, Strike.STOP, Strike.STOP, Strike.KILL, Strike.CUT, Strike.LOSE, Strike.CRASH))
        self.ambush = Ambush(
            self.world,
            at=draw(self._moments(strike)),
            strike=strike,
            until=draw(SUCCESSION),
            longest=_LONGEST_STOP,
            delay=draw((0.0, 0.0, 2.0, 8.0)) * fraction(),
            crash=self._crash,
        )

    def _moments(self, strike: Strike) -> Sequence[Moment]:
        """When an ambush may strike."""
        return WORK[strike]

    def _compact(self) -> None:
        ledger = self.world.broker.partition(LEDGER)
        limit = self.world.random.randrange(ledger.end + 1)
        oldest = min((record.at for record in ledger.records), default=0)
        newest = max((record.at for record in ledger.records), default=0)
        ledger.compact(limit, forget_tombstones_before=(oldest + newest) // 2)

    def _drawn(self) -> Member:
        if not self.world.members:
            self._start()
        return self.world.random.choice(self.world.members)

    def _after(self, longest: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(longest * self.world.random.random())
            act()

        self._background.append(asyncio.create_task(wait()))

    async def _heal(self) -> None:
        self.world.network.trouble = 0.0
        if self.ambush is not None:
            self.ambush.call_off()
        if not self.world.members:
            self._start()
        await asyncio.gather(*self._background)
        if self.world.random.random() < 0.5:  # whatever the last leader has left has to be of use to another
            self._kill()
            self._start()

    async def drain(self) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE
        while not self.has_ended():
            if loop.time() > deadline:
                return False
            await asyncio.sleep(0.25)
        return True


def history_errors(member: Member) -> Iterator[str]:
    """A member's words about another history."""
    for event in member.events:
        if _REMEDY in (error := str(event.fields.get("error"))):
            yield error


def _duels(member: Member) -> Iterator[str]:
    """A member that was fenced, was asked to stand by, or has handed over takes over no more until it is elected again,
    or stands in for another.
    """
    elected: dict[object, bool] = {}
    for event in member.events:
        shard = event.fields.get("shard")
        if event.name in ("elected", "stands_in", "stood_by", "fenced", "handed_over"):
            elected[shard] = event.name in ("elected", "stands_in")
        elif event.name == "view" and not elected.get(shard):
            yield f"duel: {event.fields['view']}"


def simulated(seed: int, design: Design = SOUND, kind: type[History] = History) -> Outcome:
    """Live through the history of a seed."""

    async def live() -> Outcome:
        focused = seed % 2 == 0
        latency = (0.005, 0.05)[seed // 2 % 2]
        world = World(seed, trouble=_TROUBLE * (seed % 8 > 1), latency=latency, clusters=design.clusters)
        for broker in world.brokers.values():
            broker.marking_time = world.network.latency * 4
        history = kind(world, design, focused=focused)
        found = await history.run()
        published = sum(
            len(partition.records) for place, partition in world.broker.partitions.items() if place[0] != LEDGER[0]
        )
        return Outcome(
            seed,
            found,
            published,
            asyncio.get_running_loop().time(),
            history.steps,
            world.database.log,
            {place: partition.readable_at for place, partition in world.broker.partitions.items()},
        )

    with patch.object(ParkedLanes, "most_lanes", (MOST_LANES, 0, 2)[seed // 8 % 3]):
        return simulate(live())
