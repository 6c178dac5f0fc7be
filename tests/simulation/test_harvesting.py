"""The real engine over simulated ports, in simulated time: members come, go and fail; nothing is lost, no key is out
of order.

One seed is one history, the same each time. That of seed 17 again:
`./dev test 'tests/simulation/test_harvesting.py::test_nothing_is_lost_and_no_key_is_out_of_order[17]'`
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from uuid import UUID

from faults.checker import Lane, Sighting, Verdict, judge
from simulation.loop import simulate
from simulation.ports import SimulatedElection, SimulatedLog, SimulatedTable, World

from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.harvester import Harvester
from airflow_outbox.harvest.ports import Log
from airflow_outbox.table import MarkedRecord

RECORDS = 200
KEYS = 7
LIMITS = Limits(max_in_flight_records=40, mark_records=15, heartbeat_timeout=1, session_timeout=3)


def verdict(stashed: list[MarkedRecord], published: list[MarkedRecord]) -> Verdict:
    lanes: defaultdict[Lane, list[int]] = defaultdict(list)
    for record in stashed:
        lanes[record.topic, record.key].append(record.id)
    return judge(lanes, [Sighting((record.topic, record.key), record.id) for record in published])


class Member:
    """A harvester that can be started, stopped and killed."""

    def __init__(self, world: World) -> None:
        self.table = SimulatedTable(world)
        self.election = SimulatedElection(world, LIMITS.heartbeat_timeout)
        self.events: list[tuple[str, dict[str, object]]] = []

        async def new_log() -> Log:
            return SimulatedLog(world)

        self.harvester = Harvester(
            table=self.table,
            new_log=new_log,
            election=self.election,
            limits=LIMITS,
            events=lambda event, /, **fields: self.events.append((event, fields)),
            new_view=lambda: UUID(int=world.random.getrandbits(128), version=4),
        )
        self.running = asyncio.create_task(self.harvester.run())

    async def stop(self) -> None:
        await self.harvester.stop(LIMITS.heartbeat_timeout)
        await self.running

    def kill(self) -> None:
        self.election.leave()
        self.running.cancel()


async def write(world: World) -> list[MarkedRecord]:
    """Stash records, one writer a key: ids are drawn in one order, and become visible in another."""
    records = [
        MarkedRecord(number, f"t{number % 2}", str(world.random.randrange(KEYS)), "v", [], [], None)
        for number in range(RECORDS)
    ]
    lanes: defaultdict[str | bytes, list[MarkedRecord]] = defaultdict(list)
    for record in records:
        lanes[record.key].append(record)

    async def writer(lane: list[MarkedRecord]) -> None:
        for record in lane:
            await asyncio.sleep(world.random.random() * 0.5)
            world.commit(record)

    await asyncio.gather(*(writer(lane) for lane in lanes.values()))
    return records


async def history(seed: int) -> tuple[World, list[MarkedRecord]]:
    """One history with members that are killed, stopped and started, and rebalances at any time, until all is out."""
    world = World(random.Random(seed), trouble=0.02)
    members = [Member(world), Member(world)]
    writing = asyncio.create_task(write(world))
    for _ in range(12):
        await asyncio.sleep(world.random.random() * 3)
        match world.random.randrange(5):
            case 0 if len(members) > 1:
                members.pop().kill()
            case 1 if len(members) > 1:
                await members.pop(0).stop()
            case 2:
                members.append(Member(world))
            case 3:
                world.rebalance()
            case 4:
                members[0].table.cut_off = not members[0].table.cut_off
    stashed = await writing
    world.trouble = 0.0
    for member in members:
        member.table.cut_off = False
    async with asyncio.timeout(300):
        while world.rows:
            await asyncio.sleep(0.1)
    for member in members:
        await member.stop()
    await asyncio.sleep(5)  # what closed producers still publish
    return world, stashed


def test_nothing_is_lost_and_no_key_is_out_of_order(seed: int) -> None:
    world, stashed = simulate(history(seed))
    assert verdict(stashed, world.published).complaints == ()


def test_a_seed_replays_the_same_history() -> None:
    first, second = (simulate(history(3))[0].published for _ in range(2))
    assert first == second
    assert first != simulate(history(4))[0].published


def test_a_leader_without_postgres_resigns_and_comes_back_as_standby() -> None:
    async def cut() -> tuple[Member, Member, World]:
        world = World(random.Random(0))
        first = Member(world)
        await asyncio.sleep(1)
        second = Member(world)
        await asyncio.sleep(1)
        first.table.cut_off = True
        world.commit(*(MarkedRecord(number, "t", str(number), "v", [], [], None) for number in range(10)))
        async with asyncio.timeout(LIMITS.heartbeat_timeout + 5):
            while world.rows:
                await asyncio.sleep(0.1)
        assert "resigned" in [event for event, _ in first.events]
        assert first.election not in world.group
        first.table.cut_off = False
        await asyncio.sleep(2)
        assert "rejoined" in [event for event, _ in first.events]
        assert first.election in world.group
        for member in (first, second):
            await member.stop()
        return first, second, world

    first, second, _ = simulate(cut())
    assert [event for event, _ in first.events].count("view") == 1
    assert [event for event, _ in second.events].count("view") == 1


def test_without_trouble_every_record_comes_once() -> None:
    async def quiet() -> tuple[World, list[MarkedRecord]]:
        world = World(random.Random(0))
        member = Member(world)
        stashed = await write(world)
        while world.rows:
            await asyncio.sleep(0.1)
        await member.stop()
        return world, stashed

    world, stashed = simulate(quiet())
    assert sorted(record.id for record in world.published) == [record.id for record in stashed]
