"""Simulated ports: one database, one Kafka, one consumer group, shared by any number of members.

A call takes time on its way there and on its way back, drawn from a seeded generator, and can be made to fail: before
it took effect or after it, which the caller can't tell. They pass the conformance suite that the real ports pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from airflow_outbox.errors import FencedError, PostgresUnreachableError, PublishError
from airflow_outbox.fence import Request
from airflow_outbox.harvest.ports import Delivery
from airflow_outbox.harvest.protocol.election import Candidate, Change, Lead, Standing
from airflow_outbox.table import MarkedRecord

Result = TypeVar("Result")

HEARTBEAT_INTERVAL = 0.1


@dataclass(slots=True)
class World:
    """What all members share. `trouble` is the probability that a call fails, or that a record is not delivered."""

    random: random.Random
    trouble: float = 0.0
    latency: float = 0.005
    rows: dict[int, MarkedRecord] = field(default_factory=dict)
    marks: dict[int, UUID | None] = field(default_factory=dict)
    fence: UUID | None = None
    published: list[MarkedRecord] = field(default_factory=list)
    max_value_size: int = 1_000_000
    group: list[SimulatedElection] = field(default_factory=list)
    owner: SimulatedElection | None = None

    def commit(self, *records: MarkedRecord) -> None:
        """A writer's transaction becomes visible."""
        for record in records:
            self.rows[record.id] = record
            self.marks[record.id] = None

    def delay(self) -> float:
        """How long a message travels: mostly `latency`, sometimes a hundred times that."""
        return self.latency * self.random.choice((1, 1, 1, 1, 2, 5, 100 if self.trouble else 5)) * self.random.random()

    def unlucky(self) -> bool:
        return self.random.random() < self.trouble

    def rebalance(self) -> None:
        """Give the partition to a member drawn at random, or to nobody when there is none.

        Whoever had it hears of it.
        """
        owner = self.random.choice(self.group) if self.group else None
        if owner is not self.owner:
            former, self.owner = self.owner, owner
            if former is not None:
                former.revoke()
            if owner is not None:
                asyncio.get_running_loop().create_task(owner.assign(former))


class SimulatedTable:
    """One member's connections. A call that fails ends them, as a lost connection does, until the next take-over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._connected = False
        self.cut_off = False

    async def take_over(self, view: UUID) -> Request:
        def effect() -> Request:
            self._world.fence = view
            return Request()

        self._connected = True
        return await self._call(effect)

    async def mark(self, view: UUID, *, max_records: int, max_bytes: int) -> list[MarkedRecord]:
        def effect() -> list[MarkedRecord]:
            self._require(view)
            marked: list[MarkedRecord] = []
            size = 0
            for identity in sorted(number for number, mark in self._world.marks.items() if mark != view):
                if len(marked) == max_records or size >= max_bytes:
                    break
                marked.append(self._world.rows[identity])
                self._world.marks[identity] = view
                size += self._world.rows[identity].size
            return marked

        return await self._call(effect)

    async def purge(self, view: UUID, ids: Sequence[int]) -> None:
        def effect() -> None:
            self._require(view)
            for identity in ids:
                if self._world.marks.get(identity) == view:
                    del self._world.rows[identity], self._world.marks[identity]

        await self._call(effect)

    async def reset(self, view: UUID, ids: Sequence[int]) -> None:
        def effect() -> None:
            self._require(view)
            for identity in ids:
                if self._world.marks.get(identity) == view:
                    self._world.marks[identity] = None

        await self._call(effect)

    async def require_fence(self, view: UUID) -> None:
        await self._call(lambda: self._require(view))

    async def heartbeat(self, view: UUID, *, published: int, in_flight: int, rate: float) -> Request:
        def effect() -> Request:
            self._require(view)
            return Request()

        return await self._call(effect)

    async def note_error(self, view: UUID, error: str) -> None:
        await asyncio.sleep(self._world.delay())

    async def is_empty(self) -> bool:
        await asyncio.sleep(self._world.delay())
        if self.cut_off:
            raise PostgresUnreachableError("simulated: out of reach")
        return not self._world.rows

    async def close(self) -> None:
        self._connected = False

    async def _call(self, effect: Callable[[], Result]) -> Result:
        if not self._connected:
            raise PostgresUnreachableError("the connection to Postgres was lost earlier in this term")
        try:
            return await asyncio.shield(asyncio.create_task(self._travel(effect)))  # a statement outlives its client
        except asyncio.CancelledError:  # what became of it, nobody knows
            self._connected = False
            raise

    async def _travel(self, effect: Callable[[], Result]) -> Result:
        world = self._world
        await asyncio.sleep(world.delay())
        if self.cut_off or world.unlucky():
            self._connected = False
            raise PostgresUnreachableError("simulated: lost before it took effect")
        result = effect()
        await asyncio.sleep(world.delay())
        if world.unlucky():
            self._connected = False
            raise PostgresUnreachableError("simulated: lost after it took effect")
        return result

    def _require(self, view: UUID) -> None:
        if self._world.fence != view:
            raise FencedError


class SimulatedLog:
    """A producer. What it has sent may be published after it was closed; whether, nobody is told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reports: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._closed = False

    def send(self, record: MarkedRecord) -> None:
        asyncio.get_running_loop().create_task(self._publish(record))

    async def deliveries(self) -> Sequence[Delivery]:
        await self._arrived.wait()
        self._arrived.clear()
        return [self._reports.popleft() for _ in range(len(self._reports))]

    async def close(self) -> None:
        self._closed = True

    async def _publish(self, record: MarkedRecord) -> None:
        world = self._world
        problem = None
        if len(record.header_names) != len(record.header_values) or record.size > world.max_value_size:
            problem = "simulated: refused"
        else:
            await asyncio.sleep(world.delay())
            if world.unlucky():
                problem = "simulated: not published"
            else:
                world.published.append(record)
                await asyncio.sleep(world.delay())
                if world.unlucky():
                    problem = "simulated: published, but the report was lost"
        self._reports.append(Delivery(record, PublishError(f"record {record.id}: {problem}") if problem else None))
        self._arrived.set()


class SimulatedElection:
    """One member of the group: the real candidate over simulated traffic. One partition, one shard."""

    def __init__(self, world: World, heartbeat_timeout: float) -> None:
        self._world = world
        self._timeout = heartbeat_timeout
        self._candidate = Candidate(heartbeat_timeout)
        self._changes: asyncio.Queue[tuple[int, Change] | None] = asyncio.Queue()
        self._released = asyncio.Event()
        self._released.set()
        self._closed = False
        self._polling: asyncio.Task[None] | None = None

    def standing(self, shard: int) -> Standing:
        return self._candidate.standing

    async def changes(self) -> AsyncIterator[tuple[int, Change]]:
        self._polling = asyncio.create_task(self._poll())
        self.rejoin()
        while (change := await self._changes.get()) is not None:
            yield change

    def released(self, shard: int) -> None:
        self._released.set()

    def fenced(self, shard: int) -> None:
        self._candidate.fenced(self._now())

    def resign(self, reason: str) -> None:
        self._part()

    def rejoin(self) -> None:
        if not self._closed:
            self._world.group.append(self)
            if self._world.owner is None:
                self._world.rebalance()

    async def close(self) -> None:
        self.leave()
        self._changes.put_nowait(None)

    def leave(self) -> None:
        """Be gone from the group for good, by leaving it or by dying."""
        self._closed = True
        if self._polling is not None:
            self._polling.cancel()
        self._part()

    def revoke(self) -> None:
        self._tell(self._candidate.revoked())

    async def assign(self, former: SimulatedElection | None) -> None:
        """Become the owner once the former one has let go, or after the barrier's time."""
        if former is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(former._released.wait(), self._timeout)
        if self._world.owner is self and not self._closed:
            self._tell(self._candidate.assigned(self._now()))

    def _part(self) -> None:
        if self in self._world.group:
            self._world.group.remove(self)
        if self._world.owner is self:
            self._world.rebalance()

    async def _poll(self) -> None:
        while True:
            if self._candidate.is_owner:
                asyncio.get_running_loop().create_task(self._beat(self._now()))
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            self._tell(self._candidate.passed(self._now()))

    async def _beat(self, sent_at: float) -> None:
        if self._world.unlucky():
            return
        await asyncio.sleep(self._world.delay())
        self._candidate.heartbeat_read(sent_at)
        if self._candidate.wants_confirmation(asked_at := self._now()):
            await asyncio.sleep(self._world.delay())
            if self._world.owner is self:
                await asyncio.sleep(self._world.delay())
                self._tell(self._candidate.confirmed(asked_at, self._now()))

    def _tell(self, change: Change | None) -> None:
        if change is None or self._closed:
            return
        if isinstance(change, Lead):
            self._released.clear()
        self._changes.put_nowait((0, change))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
