"""Several shards in one election: members come and go, and each shard has one leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.election import NeliElection
from airflow_outbox.harvest.kafka.names import KafkaNames, leader_partitions, make_leader_topic
from airflow_outbox.harvest.protocol.election import Standing

Join = Callable[[], NeliElection]


@pytest.fixture(params=[(5, 2), (4, 4), (1, 3)], ids=lambda given: f"{given[0]} shards on {given[1]} partitions")
async def join(request: pytest.FixtureRequest, kafka: EmbeddedKafka, topic_prefix: str) -> AsyncIterator[Join]:
    """A function that makes a member of one group, which lets go of everything at once."""
    shards, partitions = request.param
    settings = {
        "data_source": "",
        "kafka": {"bootstrap.servers": kafka.bootstrap},
        "leader_topic": topic_prefix + "leader",
        "leader_group_id": topic_prefix + "group",
        "limits": {"heartbeat_timeout": 2, "session_timeout": 6},
    }
    config = HarvestConfig.validated({**settings, "shards": shards}, source="test")
    names = KafkaNames.of(config, uuid4())
    make_leader_topic(HarvestConfig.validated({**settings, "shards": partitions}, source="test"), names)
    assert leader_partitions(config, names) == partitions
    members: list[NeliElection] = []
    tasks: list[asyncio.Task[None]] = []

    async def follow(election: NeliElection) -> None:
        async for shard, _ in election.changes():
            election.released(shard)

    def join() -> NeliElection:
        election = NeliElection(
            config,
            topic=names.leader_topic,
            partitions=partitions,
            group_id=names.leader_group_id,
            on_error=print,
        )
        members.append(election)
        tasks.append(asyncio.create_task(follow(election)))
        return election

    yield join
    for member in members:
        await member.close()
    await asyncio.gather(*tasks)


def leaders(members: list[NeliElection], shards: int) -> list[list[int]]:
    """For each shard, which members say that they lead it."""
    return [
        [place for place, member in enumerate(members) if member.standing(shard) is Standing.LEADER]
        for shard in range(shards)
    ]


def are_spread(found: list[list[int]], members: list[NeliElection], partitions: int) -> bool:
    """Whether every shard has one leader, those of a partition the same, and every member that can leads some."""
    if not all(len(leading) == 1 and leading == found[shard % partitions] for shard, leading in enumerate(found)):
        return False
    return len({leading[0] for leading in found}) == min(len(members), partitions, len(found))


async def settled(members: list[NeliElection], shards: int, partitions: int) -> None:
    """Wait until the shards have been spread over the members for a second."""
    calm = 0
    async with asyncio.timeout(4 * PATIENCE):
        while calm < 10:
            found = leaders(members, shards)
            calm = calm + 1 if are_spread(found, members, partitions) else 0
            await asyncio.sleep(0.1)


async def test_each_shard_has_one_leader_as_members_come_and_go(join: Join, request: pytest.FixtureRequest) -> None:
    shards, partitions = request.node.callspec.params["join"]
    members = [join()]
    await settled(members, shards, partitions)
    for _ in range(2):
        members.append(join())
        await settled(members, shards, partitions)
    while len(members) > 1:
        await members.pop(0).close()
        await settled(members, shards, partitions)
