"""The real election of several shards: how they are spread over members that come and go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import uuid4

from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.election import NeliElection
from airflow_outbox.harvest.kafka.names import KafkaNames, make_leader_topic
from airflow_outbox.harvest.protocol.election import Lead, StandBy, Standing

SIZES = (1, 2, 3, 5, 2)
"""How many members there are, one after the other."""
CASES = ((1, 1), (4, 4), (16, 16), (16, 5), (4, 7))
"""Shards, and the partitions of the election's topic."""


@dataclass(eq=False)
class Elected:
    """A member, which lets go at once unless told otherwise.

    `told` are the shards that it was told to lead, and `moved` those of them that it was told of since the group was
    last at rest. `held` are those that it is to let go of, and has not yet.
    """

    election: NeliElection
    told: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    lets_go: bool = True
    following: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for shard, change in self.election.changes():
            if isinstance(change, Lead):
                self.told.add(shard)
                self.moved.add(shard)
            elif isinstance(change, StandBy):
                self.told.discard(shard)
                self.held.add(shard)
                if self.lets_go:
                    self.let_go()

    def let_go(self) -> None:
        self.lets_go = True
        while self.held:
            self.election.released(self.held.pop())

    async def end(self) -> None:
        await self.election.close()
        await self.following


class Case:
    """A group of its own, on a topic of its own."""

    def __init__(self, kafka: EmbeddedKafka, prefix: str, shards: int, partitions: int, **limits: float) -> None:
        self.shards, self.partitions = shards, partitions
        self.members: list[Elected] = []
        self._settings = {
            "data_source": "",
            "kafka": {"bootstrap.servers": kafka.bootstrap},
            "leader_topic": f"{prefix}{shards}.{partitions}",
            "leader_group_id": f"{prefix}{shards}.{partitions}",
            "limits": limits,
        }
        config = self._config(partitions)
        self._names = KafkaNames.of(config, uuid4())
        assert make_leader_topic(config, self._names)

    def _config(self, shards: int) -> HarvestConfig:
        return HarvestConfig.validated({**self._settings, "shards": shards}, source="test")

    def join(self) -> Elected:
        election = NeliElection(
            self._config(self.shards),
            topic=self._names.leader_topic,
            partitions=self.partitions,
            group_id=self._names.group_of(self.shards),
            on_error=print,
        )
        self.members.append(Elected(election))
        return self.members[-1]

    def led(self) -> list[set[int]]:
        """The shards that each member leads."""
        return [
            {shard for shard in member.told if member.election.standing(shard) is Standing.LEADER}
            for member in self.members
        ]

    def roles(self) -> list[int]:
        """How many of the topic's partitions, as far as they have shards, each member owns."""
        return [len({shard % self.partitions for shard in led}) for led in self.led()]

    def is_spread(self) -> bool:
        """Whether each shard has one leader, and no member has two roles more than another.

        Partitions without a shard count in the group, too.
        """
        every = sorted(shard for led in self.led() for shard in led)
        uneven = max(self.roles()) - min(self.roles())
        return every == list(range(self.shards)) and uneven <= max(1, self.partitions - self.shards)

    async def until_spread(self) -> None:
        async with asyncio.timeout(3 * PATIENCE):
            while not self.is_spread():
                await asyncio.sleep(0.05)


async def play(case: Case) -> None:
    """Members come and go. Only to those that come, and from those that go, does any shard move."""
    for size in SIZES:
        stayed, before = case.members[:size], case.led()
        gone = case.members[size:]
        for member in case.members:
            member.moved.clear()
        case.members = stayed
        await asyncio.gather(*(member.end() for member in gone))
        while len(case.members) < size:
            case.join()
        await case.until_spread()
        freed = set().union(*before[size:])
        for member, had, has in zip(stayed, before, case.led(), strict=False):
            where = f"{case.shards} shards, {case.partitions} partitions, {size} members"
            assert has - had <= freed, f"{where}: {has - had} moved, though only {freed} was free"
            assert member.moved <= freed, f"{where}: {member.moved} had another leader meanwhile"
            if gone:
                assert had <= has, f"{where}: {had - has} moved away"


async def test_shards_are_spread_evenly_and_move_as_little_as_possible(kafka: EmbeddedKafka, topic_prefix: str) -> None:
    # A busy machine unseats nobody.
    limits = {"heartbeat_timeout": 20, "session_timeout": 40}
    cases = [Case(kafka, topic_prefix, shards, partitions, **limits) for shards, partitions in CASES]
    try:
        await asyncio.gather(*map(play, cases))
    finally:
        await asyncio.gather(*(member.end() for case in cases for member in case.members))


async def test_another_member_gets_a_shard_once_its_leader_has_let_go_which_keeps_its_others(
    kafka: EmbeddedKafka, topic_prefix: str
) -> None:
    case = Case(kafka, topic_prefix, 4, 4, heartbeat_timeout=40, session_timeout=60)
    first = case.join()
    try:
        await case.until_spread()
        first.lets_go = False
        case.join()
        async with asyncio.timeout(3 * PATIENCE):
            while len(first.held) < 2:
                await asyncio.sleep(0.05)
        moving = {*first.held}
        await asyncio.sleep(1)  # several times what a rebalance takes; the barrier lasts for twenty seconds
        assert case.led() == [{*range(4)} - moving, set()]
        first.let_go()
        await case.until_spread()
        assert case.led() == [{*range(4)} - moving, moving]
    finally:
        await asyncio.gather(*(member.end() for member in case.members))
