"""A member whose client has failed for good joins again with another client.

Kafka fences a member when another joins under its name: a machine that was copied while it ran, or a request of its own
that came late while a broker was away. The client tells of it in a message, or raises it out of a poll.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, Message
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka import election
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.election import NeliElection
from airflow_outbox.harvest.kafka.names import KafkaNames, make_leader_topic
from airflow_outbox.harvest.protocol.election import Change, Lead, StandBy

# The other call for a group's members may abort the process: see Cluster.members.
pytestmark = pytest.mark.filterwarnings("ignore:list_groups:DeprecationWarning")

COPY = """
import json, sys
from confluent_kafka import Consumer
settings, topic = json.load(sys.stdin)
consumer = Consumer(settings)
consumer.subscribe([topic])
while True:
    consumer.poll(1)
"""
"""A process of its own: a client that is closed while it joins may hang and hold Python's lock (librdkafka 2.16)."""


@dataclass(frozen=True, slots=True)
class Member:
    """The only member of its group."""

    settings: HarvestConfig
    names: KafkaNames
    changes: asyncio.Queue[Change]
    errors: list[str]

    async def becomes(self, wanted: type[Change]) -> None:
        async with asyncio.timeout(PATIENCE):
            assert isinstance(await self.changes.get(), wanted), self.errors

    async def fails(self) -> None:
        await self.becomes(StandBy)
        assert any("has failed" in error for error in self.errors), self.errors
        self.errors.clear()

    def copied_settings(self, name: str) -> dict[str, Any]:
        return {
            **self.settings.kafka,
            "group.id": self.names.leader_group_id,
            "group.instance.id": name,
            "partition.assignment.strategy": "range,roundrobin",
            "session.timeout.ms": 6_000,
        }

    def name(self) -> str:
        """Its name in the group."""
        [member_id] = Cluster(self.settings.kafka).members(self.names.leader_group_id) or []
        return member_id[: -len(f"-{uuid4()}")]


@dataclass(slots=True)
class FailingConsumers:
    """The election's consumers, whose next poll may fail for good."""

    next_poll_fails: bool = False

    def new_consumer(self, *arguments: Any, **settings: Any) -> Consumer:
        owner = self

        class FailingConsumer(Consumer):
            def poll(self, *arguments: Any, **settings: Any) -> Message | None:
                if owner.next_poll_fails:
                    owner.next_poll_fails = False
                    raise KafkaError(KafkaError._FATAL, "for a test", True)  # type: ignore[misc]
                return super().poll(*arguments, **settings)

        return FailingConsumer(*arguments, **settings)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingConsumers:
    failing = FailingConsumers()
    monkeypatch.setattr(election, "Consumer", failing.new_consumer)
    return failing


@pytest.fixture
async def member(kafka: EmbeddedKafka, topic_prefix: str) -> AsyncIterator[Member]:
    settings = HarvestConfig.validated(
        {
            "data_source": "",
            "kafka": {"bootstrap.servers": kafka.bootstrap},
            "limits": {"heartbeat_timeout": 15.0, "session_timeout": 180.0},
            "leader_topic": topic_prefix + "leader",
            "leader_group_id": topic_prefix + "group",
        },
        source="test",
    )
    names = KafkaNames.of(settings, uuid4())
    make_leader_topic(settings, names)
    member = Member(settings, names, asyncio.Queue(), [])
    joined = NeliElection(
        settings, topic=names.leader_topic, partitions=1, group_id=names.leader_group_id, on_error=member.errors.append
    )

    async def follow() -> None:
        async for _, change in joined.changes():
            if isinstance(change, StandBy):
                joined.released(0)
            member.changes.put_nowait(change)

    following = asyncio.create_task(follow())
    await member.becomes(Lead)
    yield member
    joined.released(0)
    await joined.close()
    await following


async def test_a_member_leads_again_after_another_took_its_name(member: Member) -> None:
    """It takes the name back once. If that does not help, it takes a new one."""
    name = member.name()
    for names_are_equal in (True, False):
        with subprocess.Popen([sys.executable, "-c", COPY], stdin=subprocess.PIPE) as copy:
            try:
                assert copy.stdin is not None
                copy.stdin.write(json.dumps([member.copied_settings(name), member.names.leader_topic]).encode())
                copy.stdin.close()
                await member.fails()
            finally:
                copy.kill()
        await member.becomes(Lead)
        assert (member.name() == name) == names_are_equal


async def test_a_member_leads_again_after_its_client_raised(failing: FailingConsumers, member: Member) -> None:
    """The client raises a KafkaError under Python 3.11, which `except Exception` does not catch."""
    failing.next_poll_fails = True
    await member.fails()
    await member.becomes(Lead)
