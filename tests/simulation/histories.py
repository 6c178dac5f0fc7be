"""Histories: what befalls a world, drawn from a seed; the same seed is the same history.

Members are killed, stopped, continued, cut off and asked to end; Postgres crashes; the group rebalances; the ledger is
compacted; messages are lost and late. Then all trouble ends, and everything has to be published within bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.applications import Applications
from simulation.checker import complaints
from simulation.kafka import LEDGER
from simulation.loop import simulate
from simulation.world import SOUND, Design, Member, World

from airflow_outbox.errors import HistoryError

_ACTS = 10
_MEMBERS = 3
_PATIENCE = 90.0  # the longest that draining may take once trouble has ended, in seconds
_AFTERMATH = 20.0  # by then nothing is on its way any more, in seconds


@dataclass(slots=True)
class Outcome:
    """What was wrong in a history, and how large it was."""

    seed: int
    complaints: list[str]
    published: int = 0
    seconds: float = 0.0
    steps: list[str] = field(default_factory=list)


class History:
    """One history of a world."""

    def __init__(self, world: World, design: Design, *, acts: int = _ACTS, transactions: int = 30) -> None:
        self.world = world
        self.design = design
        self.members: list[Member] = []
        self.steps: list[str] = []
        self._acts = acts
        self._transactions = transactions
        self._background: list[asyncio.Task[Any]] = []

    async def run(self) -> list[str]:
        """Live through it; what was wrong."""
        world = self.world
        applications = Applications(world, transactions=self._transactions)
        self._start()
        self._start()
        writing = asyncio.create_task(applications.run())
        flushing = asyncio.create_task(applications.flush_now_and_then())
        for _ in range(self._acts):
            await asyncio.sleep(2.5 * world.random.random())
            self._act()
        await self._heal()
        await writing
        drained = await self._drain()
        await asyncio.gather(*(member.stop() for member in list(world.members)))
        flushing.cancel()
        await asyncio.sleep(_AFTERMATH)
        world.database.flush()
        found = [] if drained else [f"stuck: {len(world.database.state.rows)} records left"]
        return found + self._judge(drained=drained)

    def _judge(self, *, drained: bool) -> list[str]:
        exactly_once = self.design.delivery == "exactly_once"
        found = complaints(
            self.world.database,
            self.world.broker,
            exactly_once=exactly_once,
            atomic=self.design.atomic,
            drained=drained,
        )
        for member in self.members:
            if member.running.done() and not member.running.cancelled() and member.running.exception():
                found.append(f"bug: {member.running.exception()!r}")
            for event in member.events:
                if HistoryError.REMEDY in str(event.fields.get("error")):
                    found.append(f"false alarm: {event.fields['error']}")
        return found

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
            self.world.group.rebalance,
            self._compact,
        )
        act = self.world.random.choice(acts)
        self.steps.append(f"{asyncio.get_running_loop().time():.2f} {act.__name__.strip('_')}")
        act()

    def _start(self) -> None:
        if len(self.world.members) < _MEMBERS:
            self.members.append(Member(self.world, self.design))

    def _kill(self) -> None:
        self._drawn().kill()
        if not self.world.members:
            self._start()

    def _stop(self) -> None:
        member = self._drawn()
        if not member.process.stopped:
            self._background.append(member.stop())
            if not self.world.members:
                self._start()

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

    def _compact(self) -> None:
        ledger = self.world.broker.partition(LEDGER)
        limit = self.world.random.randrange(ledger.end + 1)
        oldest = min((record.at for record in ledger.records), default=0)
        newest = max((record.at for record in ledger.records), default=0)
        ledger.compact(limit, forget_tombstones_before=(oldest + newest) // 2)

    def _drawn(self) -> Member:
        return self.world.random.choice(self.world.members)

    def _after(self, longest: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(longest * self.world.random.random())
            act()

        self._background.append(asyncio.create_task(wait()))

    async def _heal(self) -> None:
        self.world.network.trouble = 0.0
        if not self.world.members:
            self._start()
        await asyncio.gather(*self._background)

    async def _drain(self) -> bool:
        state, loop = self.world.database, asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE
        while state.state.rows or state.state.open:
            if loop.time() > deadline:
                return False
            await asyncio.sleep(0.25)
        return True


def simulated(seed: int, design: Design = SOUND, *, trouble: float = 0.02) -> Outcome:
    """Live through the history of a seed."""

    async def live() -> Outcome:
        world = World(seed, trouble=trouble * (seed % 4 > 0), latency=(0.005, 0.05)[seed % 2])
        world.broker.marking_time = world.network.latency * 4
        history = History(world, design)
        found = await history.run()
        published = sum(
            len(partition.records) for place, partition in world.broker.partitions.items() if place != LEDGER
        )
        return Outcome(seed, found, published, asyncio.get_running_loop().time(), history.steps)

    return simulate(live())
