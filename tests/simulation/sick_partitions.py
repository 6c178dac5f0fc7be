"""Histories in which partitions are without a leader for a while, the ledger's own among them.

Meanwhile whatever else may happen does. Then all trouble ends but for one partition, which has no leader for as long as
it takes: all records of other topics have to come out, under the leader that there is, and under its successor. When
the partition is back, all the rest has to come out, by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from simulation.histories import History
from simulation.kafka import LEDGER, PARTITIONS
from simulation.loop import ELSEWHERE
from simulation.world import Member

from airflow_outbox.values.extents import TopicAndPartition

TOPICS = ("t0", "t1")
_SHORTEST, _LONGEST = 0.5, 15.0  # how long a partition is away, in seconds
_WITHIN = 40.0
"""Seconds until all other records are out: several terms, each of which gives Kafka time to answer."""
_SLOW_WRITE = 7.0
_SLOW_COMMIT = 4.8  # a little less than the client waits
_SUCCESSION = 10.0
"""How long a successor takes to be elected, to find that an id can't be fenced, and to publish, in seconds."""
_SLOW = 3.0
_RELAPSE = 12.0
_BACKLOG = 100  # records; so that a leader holds some for its next transactions


KAFKA = ("add", "publish", "commit", "end", "stable offsets", "glimpse", "ledger")
"""A leader's requests to Kafka."""


class Stranding:
    """Takes a partition away as soon as a commit that touches it is decided, and has no marker there."""

    def __init__(self, history: SickPartitions) -> None:
        self.victim: Member | None = None
        self.is_over = False
        self._history = history

    def watch(self, member: Member, question: str, phase: str) -> float:
        world = self._history.world
        if self.victim is None and (question, phase) == ("end", "answered"):
            unmarked = world.broker.unmarked
            if unmarked and not member.process.stopped:
                self._history.lose(world.random.choice(unmarked))
                self.victim = member
        is_slow = member is self.victim and self.is_over and phase == "asked"
        return _SLOW if is_slow and question not in KAFKA else 0.0


class SickPartitions(History):
    """Partitions lose their leaders."""

    async def _disturb(self) -> None:
        random, broker = self.world.random, self.world.broker
        broker.writing_time = self._writing_time
        if random.random() < 0.5:
            falling = [asyncio.create_task(self._fall_ill()) for _ in range(2)]
            await super()._disturb()
            for task in falling:
                task.cancel()
        else:
            for _ in range(2):
                await asyncio.sleep(2 * random.random())
                await self._strand()
        broker.writing_time = lambda places: 0.0
        for place in sorted(broker.away):
            broker.find_leader(place)

    async def _fall_ill(self) -> None:
        random, broker = self.world.random, self.world.broker
        while True:
            await asyncio.sleep(4 * random.random())
            place = LEDGER if random.random() < 0.1 else self._place()
            self.lose(place)
            await asyncio.sleep(_SHORTEST + (_LONGEST - _SHORTEST) * random.random() ** 2)
            broker.find_leader(place)

    def lose(self, place: TopicAndPartition) -> None:
        self.world.broker.lose_leader(place)
        self.steps.append(f"{asyncio.get_running_loop().time():.2f} {place} has no leader")

    async def _strand(self) -> None:
        """A leader's commit is decided, and a partition is away before it has its marker. The leader is stopped amid
        its next transactions, and goes on, without hearing anything from Postgres, when its successor is at work and
        the partition is back.
        """
        random, loop = self.world.random, asyncio.get_running_loop()
        while len(self.world.members) < 2:
            self._start()
        stranding = Stranding(self)
        self.world.watch = stranding.watch
        self.applications.write_at_once(_BACKLOG)
        deadline = loop.time() + 8
        while stranding.victim is None and loop.time() < deadline:
            await asyncio.sleep(0.1)
        if stranding.victim is not None:
            await asyncio.sleep(0.1 + 0.4 * random.random())
            stranding.victim.process.stop()
            await asyncio.sleep(_SUCCESSION * (0.3 + 0.7 * random.random()))
            for place in sorted(self.world.broker.away):
                self.world.broker.find_leader(place)
            await asyncio.sleep(self.world.broker.marking_time + 0.2 * random.random())
            stranding.is_over = True
            stranding.victim.process.go_on()
            await asyncio.sleep(_SLOW)
        self.world.watch = None

    def _place(self) -> TopicAndPartition:
        return self.world.random.choice(TOPICS), self.world.random.randrange(PARTITIONS)

    def _writing_time(self, places: Collection[TopicAndPartition]) -> float:
        """The coordinator is slow now and then. When that holds a commit up before its record is in the ledger,
        Postgres crashes, so that the leader's next term finds the commit under way.
        """
        draw = self.world.random.random
        if LEDGER in places and draw() < 0.03:
            asyncio.get_running_loop().call_later(0.3 * draw(), self._crash, context=ELSEWHERE)
            return _SLOW_COMMIT + draw()
        return _SLOW_WRITE * draw() if draw() < 0.01 else 0.0

    async def end(self) -> list[str]:
        found = [] if not await self.drain() else await self._go_on_without(self._place())
        return found + await super().end()

    async def _go_on_without(self, place: TopicAndPartition) -> list[str]:
        """Have one partition away; what is wrong with all others."""
        broker, random = self.world.broker, self.world.random
        writing = asyncio.create_task(self.applications.go_on(12))
        await asyncio.sleep(3 * random.random())
        broker.lose_leader(place)
        found = [*await self._others_are_out(writing, place)]
        if not found:
            for member in list(self.world.members):
                if random.random() < 0.5:
                    member.kill()
                else:
                    member.stop()
            self._start()
            writing = asyncio.create_task(self.applications.go_on(6))
            found = [*await self._others_are_out(writing, place)]
        if random.random() < 0.5:
            await self._relapse(place)
        broker.find_leader(place)
        await writing
        return found

    async def _relapse(self, place: TopicAndPartition) -> None:
        """A partition is back until records that had to wait for it are committed, and away before they can be read."""
        broker = self.world.broker

        def watch(member: Member, question: str, phase: str) -> float:
            if (question, phase) == ("end", "answered") and place in broker.unmarked:
                self.world.watch = None
                self.lose(place)
            return 0.0

        broker.find_leader(place)
        self.world.watch = watch
        self._ask_for_parked()
        await asyncio.sleep(_RELAPSE)
        self.world.watch = None

    async def _others_are_out(self, writing: asyncio.Task[None], place: TopicAndPartition) -> list[str]:
        await writing
        self.world.database.flush()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WITHIN
        while self.world.database.state.rows and loop.time() < deadline:
            await asyncio.sleep(0.25)
        return [*self._innocents(place)]

    def _innocents(self, place: TopicAndPartition) -> Iterator[str]:
        """Records that wait for a partition that they don't need."""
        state = self.world.database.state
        if state.rows:
            yield f"stuck: {len(state.rows)} records wait for {place} to have a leader"
        if not self.design.atomic:
            parked = [row.record for row in state.parked.values() if row.record.topic != place[0]]
            yield from (f"stuck: {record.value} of {record.topic} is parked, and {place} is sick" for record in parked)

    def has_ended(self) -> bool:
        """Whether nothing is left, nor parked; of what is parked it is asked to retry it."""
        if not super().has_ended():
            return False
        self._ask_for_parked()
        return not self.world.database.state.parked

    def _ask_for_parked(self) -> None:
        database = self.world.database
        waiting = [number for number, row in database.state.parked.items() if row.requested is None]
        if waiting and database.up:
            database.statement("ask", tuple(waiting), "retry")
