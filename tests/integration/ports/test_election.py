"""The port `Election`, real and simulated, passes one suite: what the engine relies on, so that the simulation can be
trusted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

import pytest
from simulation.group import Group, SimulatedElection
from simulation.log import kafka_link
from simulation.world import World
from support.harvesting import PATIENCE

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.election import NeliElection
from airflow_outbox.harvest.kafka.names import KafkaNames, leader_partitions, make_leader_topic
from airflow_outbox.harvest.ports import Election
from airflow_outbox.harvest.protocol.election import Change, Lead, Standing

HEARTBEAT_TIMEOUT, SESSION_TIMEOUT = 15.0, 20.0
"""A busy machine unseats nobody."""
SHORT = 2.0
"""The heartbeat timeout where a test waits for as long."""
LONG = 10 * PATIENCE
"""The heartbeat timeout where nobody waits for as long."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member whose changes are collected as they come; `told` has all of them."""

    election: Election
    changes: asyncio.Queue[Change] = field(default_factory=asyncio.Queue)
    told: list[Change] = field(default_factory=list)

    @property
    def is_told(self) -> bool:
        """Whether the newest change that has come is that to its present standing."""
        leads = bool(self.told) and isinstance(self.told[-1], Lead)
        return leads == (self.election.standing(0) is Standing.LEADER)

    async def becomes(self, change: type[Change]) -> None:
        async with asyncio.timeout(PATIENCE):
            assert isinstance(await self.changes.get(), change)

    async def stays(self, seconds: float) -> bool:
        """Whether it hears of no change for so long, and leads."""
        try:
            async with asyncio.timeout(seconds):
                await self.changes.get()
        except TimeoutError:
            return self.election.standing(0) is Standing.LEADER
        return False


class Join(Protocol):
    def __call__(self, heartbeat_timeout: float = HEARTBEAT_TIMEOUT) -> JoinedMember: ...


@pytest.fixture(params=["real", "real, on a topic of Kafka's own", "simulated"])
async def join(request: pytest.FixtureRequest, topic_prefix: str) -> AsyncIterator[Join]:
    """A function that makes a new member of one group."""
    world = World(1)
    group = Group(world.network, barrier=HEARTBEAT_TIMEOUT, session_timeout=SESSION_TIMEOUT)
    members: list[JoinedMember] = []
    tasks: list[asyncio.Task[None]] = []
    if request.param != "simulated":
        settings = HarvestConfig.validated(
            {
                "data_source": "",
                "kafka": {"bootstrap.servers": request.getfixturevalue("kafka").bootstrap},
                "limits": {"heartbeat_timeout": HEARTBEAT_TIMEOUT, "session_timeout": SESSION_TIMEOUT},
                "leader_topic": topic_prefix + "leader" if request.param == "real" else "__consumer_offsets",
                "leader_group_id": topic_prefix + "group",
            },
            source="test",
        )
        names = KafkaNames.of(settings, uuid4())
        assert make_leader_topic(settings, names) == (request.param == "real")
        assert not make_leader_topic(settings, names)
        partitions = leader_partitions(settings, names)

    def new_election(heartbeat_timeout: float) -> Election:
        if request.param == "simulated":
            return SimulatedElection(group, kafka_link(world.network), heartbeat_timeout)
        limits = settings.limits.model_copy(update={"heartbeat_timeout": heartbeat_timeout})
        return NeliElection(
            settings.model_copy(update={"limits": limits}),
            topic=names.leader_topic,
            partitions=partitions,
            group_id=names.leader_group_id,
            on_error=print,
        )

    async def collect(member: JoinedMember) -> None:
        async for _, change in member.election.changes():
            member.told.append(change)
            member.changes.put_nowait(change)

    def join(heartbeat_timeout: float = HEARTBEAT_TIMEOUT) -> JoinedMember:
        member = JoinedMember(new_election(heartbeat_timeout))
        members.append(member)
        tasks.append(asyncio.create_task(collect(member)))
        return member

    yield join
    for member in members:
        member.election.released(0)
        await member.election.close()
    await asyncio.gather(*tasks)


async def one_leader(*members: JoinedMember) -> tuple[JoinedMember, JoinedMember]:
    """The leader and the other of two members, once the group is at rest; joining may have moved the role."""
    async with asyncio.timeout(PATIENCE):
        while not (
            sorted(member.election.standing(0) for member in members) == [Standing.LEADER, Standing.STANDBY]
            and all(member.is_told for member in members)
        ):
            for member in members:
                if member.election.standing(0) is Standing.STANDBY:
                    member.election.released(0)
            await asyncio.sleep(0.05)
    for member in members:
        while not member.changes.empty():
            member.changes.get_nowait()
    leader, other = sorted(members, key=lambda member: member.election.standing(0) is Standing.STANDBY)
    return leader, other


async def test_a_successor_leads_as_soon_as_the_leader_has_let_go_and_left(join: Join) -> None:
    first, second = join(LONG), join(LONG)
    leader, other = await one_leader(first, second)
    leader.election.released(0)
    await leader.election.close()
    await other.becomes(Lead)


async def test_a_successor_waits_for_a_leader_that_has_not_let_go_but_not_for_ever(join: Join) -> None:
    first, second = join(SHORT), join(SHORT)
    leader, other = await one_leader(first, second)
    begun = time.monotonic()
    leaving = asyncio.create_task(leader.election.close())
    await other.becomes(Lead)
    assert time.monotonic() - begun > 0.8 * SHORT
    await leaving


async def test_a_leader_stays_while_its_heartbeats_come_back(join: Join) -> None:
    """Unless the machine is too busy for them, for a moment."""
    member = join(SHORT)
    await member.becomes(Lead)
    async with asyncio.timeout(PATIENCE):
        while not await member.stays(2.5 * SHORT):
            pass


async def test_after_being_fenced_it_leads_again_on_a_heartbeat_sent_since(join: Join) -> None:
    member = join()
    await member.becomes(Lead)
    member.election.fenced(0)
    assert member.election.standing(0) is Standing.FENCED
    await member.becomes(Lead)


async def test_a_member_that_resigns_makes_room_and_may_come_back(join: Join) -> None:
    first, second = join(), join()
    leader, other = await one_leader(first, second)
    leader.election.resign("for a test")
    leader.election.released(0)
    await other.becomes(Lead)
    assert leader.election.standing(0) is Standing.STANDBY
    leader.election.rejoin()
    await one_leader(first, second)


async def test_a_member_that_joins_takes_nothing_from_the_leader(join: Join) -> None:
    first = join()
    await first.becomes(Lead)
    for _ in range(3):
        other = join()
        await asyncio.sleep(2 * SESSION_TIMEOUT / 20)  # the leader hears of it with its next answer from the group
        await one_leader(first, other)
        assert first.election.standing(0) is Standing.LEADER
