"""One conformance suite for the ports, real and simulated: what the engine relies on, so that the simulation can be
trusted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from simulation.ports import SimulatedElection, SimulatedLog, SimulatedTable, World

from airflow_outbox.demo.kafka import EmbeddedKafka
from airflow_outbox.errors import FencedError, PostgresError, PublishError
from airflow_outbox.harvest.config import HarvestConfig, Limits
from airflow_outbox.harvest.kafka import KafkaLog, producer_settings
from airflow_outbox.harvest.neli import NeliElection
from airflow_outbox.harvest.ports import Delivery, Election, Log, Table
from airflow_outbox.harvest.postgres import PostgresTable
from airflow_outbox.harvest.protocol.election import Change, Lead, Standing
from airflow_outbox.harvest.topics import KafkaNames, leader_partitions, make_leader_topic
from airflow_outbox.names import OutboxName
from airflow_outbox.schema import init_outbox
from airflow_outbox.table import MarkedRecord

HEARTBEAT_TIMEOUT = 1.0
LIMITS = {"heartbeat_timeout": HEARTBEAT_TIMEOUT, "session_timeout": 6}


def config(kafka: EmbeddedKafka, **settings: Any) -> HarvestConfig:
    return HarvestConfig.validated(
        {"data_source": "", "kafka": {"bootstrap.servers": kafka.bootstrap}, "limits": LIMITS, **settings},
        source="test",
    )


def pending(count: int, *, value: str | None = "value") -> list[MarkedRecord]:
    return [MarkedRecord(number, "t", f"k{number}", value, ["h"], ["1"], None) for number in range(1, count + 1)]


# Tables


@dataclass(frozen=True, slots=True)
class TableUnderTest:
    """Two members' tables over one outbox, and a writer's way into it."""

    one: Table
    other: Table
    commit: Callable[[list[MarkedRecord]], None]


@pytest.fixture(params=["real", "simulated"])
async def table(request: pytest.FixtureRequest) -> AsyncIterator[TableUnderTest]:
    if request.param == "simulated":
        world = World(random.Random(1))
        yield TableUnderTest(SimulatedTable(world), SimulatedTable(world), lambda records: world.commit(*records))
        return
    database = request.getfixturevalue("database")
    name = OutboxName.parse("outbox")
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, name)

        def commit(records: list[MarkedRecord]) -> None:
            with connection.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO outbox"
                    " (id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)"
                    " VALUES (%s, %s, %s, %s, %s, %s)",
                    [record[:6] for record in records],
                )

        one, other = PostgresTable(database, name, Limits()), PostgresTable(database, name, Limits())
        yield TableUnderTest(one, other, commit)
        await one.close()
        await other.close()


ALL = {"max_records": 1000, "max_bytes": 10**9}


async def test_mark_returns_the_next_records_in_id_order_once(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    assert await table.one.mark(view, **ALL) == []
    table.commit(pending(5)[2:])
    assert await table.one.mark(view, max_records=2, max_bytes=10**9) == pending(5)[2:4]
    table.commit(pending(5)[:2])  # became visible late, with lower ids
    assert await table.one.mark(view, **ALL) == [*pending(2), pending(5)[4]]
    assert await table.one.mark(view, **ALL) == []


async def test_mark_stops_at_the_bound_on_bytes_but_always_takes_one(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    table.commit([*pending(3), MarkedRecord(4, "t", "tombstone", None, [], [], None)])
    size = pending(1)[0].size
    assert [record.id for record in await table.one.mark(view, max_records=9, max_bytes=1)] == [1]
    assert [record.id for record in await table.one.mark(view, max_records=9, max_bytes=size + 1)] == [2, 3]
    assert [record.value for record in await table.one.mark(view, max_records=9, max_bytes=1)] == [None]


async def test_a_new_view_marks_what_the_old_one_left(table: TableUnderTest) -> None:
    old, new = uuid4(), uuid4()
    table.commit(pending(3))
    await table.one.take_over(old)
    await table.one.mark(old, **ALL)
    await table.one.purge(old, [2])
    await table.other.take_over(new)
    assert [record.id for record in await table.other.mark(new, **ALL)] == [1, 3]


async def test_a_fenced_view_changes_nothing(table: TableUnderTest) -> None:
    old, new = uuid4(), uuid4()
    table.commit(pending(3))
    await table.one.take_over(old)
    await table.one.mark(old, max_records=2, max_bytes=10**9)
    await table.other.take_over(new)
    for attempt in (
        table.one.mark(old, **ALL),
        table.one.purge(old, [1]),
        table.one.reset(old, [1]),
        table.one.heartbeat(old, published=1, in_flight=0, rate=0),
        table.one.require_fence(old),
    ):
        with pytest.raises(FencedError):
            await attempt
    assert [record.id for record in await table.other.mark(new, **ALL)] == [1, 2, 3]
    await table.other.purge(new, [1, 2, 3])
    with pytest.raises(FencedError):
        await table.one.mark(old, **ALL)


async def test_purge_takes_only_what_the_view_has_marked(table: TableUnderTest) -> None:
    view = uuid4()
    table.commit(pending(2))
    await table.one.take_over(view)
    await table.one.mark(view, max_records=1, max_bytes=10**9)
    await table.one.purge(view, [1, 2, 77])
    assert not await table.one.is_empty()
    assert [record.id for record in await table.one.mark(view, **ALL)] == [2]
    await table.one.purge(view, [2])
    assert await table.one.is_empty()


async def test_what_is_reset_is_marked_again_by_the_same_view(table: TableUnderTest) -> None:
    view = uuid4()
    table.commit(pending(2))
    await table.one.take_over(view)
    await table.one.mark(view, **ALL)
    await table.one.reset(view, [2])
    assert [record.id for record in await table.one.mark(view, **ALL)] == [2]


async def test_without_a_take_over_there_is_no_connection(table: TableUnderTest) -> None:
    with pytest.raises(PostgresError):
        await table.one.mark(uuid4(), **ALL)
    await table.one.take_over(uuid4())
    await table.one.close()
    with pytest.raises(PostgresError):
        await table.one.purge(uuid4(), [1])


# Logs


@dataclass(frozen=True, slots=True)
class LogUnderTest:
    """A log, the topic to use, and what a consumer sees there."""

    log: Log
    topic: str
    seen: Callable[[], list[tuple[Any, ...]]]


def consumed(bootstrap: str, topic: str, count: int) -> list[tuple[Any, ...]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, timeout=10)
        return [
            (m.key().decode(), m.value() and m.value().decode(), [(n, v.decode()) for n, v in m.headers() or []])
            for m in messages
        ]
    finally:
        consumer.close()


@pytest.fixture(params=["real", "simulated"])
async def log(request: pytest.FixtureRequest, topic_prefix: str) -> AsyncIterator[LogUnderTest]:
    topic = topic_prefix + "data"
    if request.param == "simulated":
        world = World(random.Random(1))
        simulated = SimulatedLog(world)

        def seen() -> list[tuple[Any, ...]]:
            return [(r.key, r.value, list(zip(r.header_names, r.header_values, strict=True))) for r in world.published]

        yield LogUnderTest(simulated, topic, seen)
        await simulated.close()
        return
    kafka = request.getfixturevalue("kafka")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    real = await KafkaLog.open(producer_settings(config(kafka)))
    yield LogUnderTest(real, topic, lambda: consumed(kafka.bootstrap, topic, 3))
    await real.close()


async def reports(log: Log, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await log.deliveries()
    return found


async def test_every_record_is_reported_once_and_is_there(log: LogUnderTest) -> None:
    records = [
        MarkedRecord(1, log.topic, "a", "1", ["x", "x"], ["1", ""], None),
        MarkedRecord(2, log.topic, "b", None, [], [], None),
        MarkedRecord(3, log.topic, "ü", "ß", ["h"], ["v"], 0),
    ]
    for record in records:
        log.log.send(record)
    found = await reports(log.log, 3)
    assert sorted(delivery.record.id for delivery in found) == [1, 2, 3]
    assert [delivery.error for delivery in found] == [None] * 3
    expected = [("a", "1", [("x", "1"), ("x", "")]), ("b", None, []), ("ü", "ß", [("h", "v")])]
    assert sorted(log.seen()) == sorted(expected, key=lambda seen: seen[0])


@pytest.mark.parametrize(
    "bad",
    [("v" * 2_000_000, ["h"], ["v"]), ("v", ["h"], []), ("v", ["h"], ["a", "b"])],
    ids=["too large", "a value too few", "a value too many"],
)
async def test_what_cannot_be_published_is_reported_with_its_id(
    log: LogUnderTest, bad: tuple[str, list[str | None], list[Any]]
) -> None:
    log.log.send(MarkedRecord(77, log.topic, "k", *bad, None))
    log.log.send(MarkedRecord(78, log.topic, "k", "fine", [], [], None))
    found = {delivery.record.id: delivery.error for delivery in await reports(log.log, 2)}
    assert isinstance(found[77], PublishError)
    assert "record 77" in str(found[77])
    assert found[78] is None


# Elections


@dataclass(frozen=True, slots=True)
class Member:
    """A member whose changes are collected as they come."""

    election: Election
    changes: asyncio.Queue[Change]

    async def becomes(self, change: type[Change], within: float = 15) -> None:
        async with asyncio.timeout(within):
            assert isinstance(await self.changes.get(), change)


@pytest.fixture(params=["real", "real, on a topic of Kafka's own", "simulated"])
async def join(request: pytest.FixtureRequest, topic_prefix: str) -> AsyncIterator[Callable[[], Member]]:
    """A function that makes a new member of one group."""
    world = World(random.Random(1))
    members: list[Member] = []
    tasks: list[asyncio.Task[None]] = []
    if request.param != "simulated":
        settings = config(
            request.getfixturevalue("kafka"),
            leader_topic=topic_prefix + "leader" if request.param == "real" else "__consumer_offsets",
            leader_group_id=topic_prefix + "group",
        )
        names = KafkaNames.of(settings, uuid4())
        assert make_leader_topic(settings, names) == (request.param == "real")
        assert not make_leader_topic(settings, names)
        partitions = leader_partitions(settings, names)

    def new_election() -> Election:
        if request.param == "simulated":
            return SimulatedElection(world, HEARTBEAT_TIMEOUT)
        return NeliElection(
            settings, topic=names.leader_topic, partitions=partitions, group_id=names.leader_group_id, on_error=print
        )

    async def collect(member: Member) -> None:
        async for _, change in member.election.changes():
            member.changes.put_nowait(change)

    def join() -> Member:
        member = Member(new_election(), asyncio.Queue())
        members.append(member)
        tasks.append(asyncio.create_task(collect(member)))
        return member

    yield join
    for member in members:
        member.election.released(0)
        await member.election.close()
    await asyncio.gather(*tasks)


async def one_leader(*members: Member) -> tuple[Member, Member]:
    """The leader and the other of two members, once the group is at rest; joining may have moved the role."""
    async with asyncio.timeout(15):
        while sorted(member.election.standing(0) for member in members) != [Standing.LEADER, Standing.STANDBY]:
            for member in members:
                if member.election.standing(0) is Standing.STANDBY:
                    member.election.released(0)
            await asyncio.sleep(0.05)
    for member in members:
        while not member.changes.empty():
            member.changes.get_nowait()
    leader, other = sorted(members, key=lambda member: member.election.standing(0) is Standing.STANDBY)
    return leader, other


async def test_a_successor_leads_as_soon_as_the_leader_has_let_go_and_left(join: Callable[[], Member]) -> None:
    first, second = join(), join()
    leader, other = await one_leader(first, second)
    leader.election.released(0)
    await leader.election.close()
    await other.becomes(Lead, within=HEARTBEAT_TIMEOUT)


async def test_a_successor_waits_for_a_leader_that_has_not_let_go_but_not_for_ever(join: Callable[[], Member]) -> None:
    first, second = join(), join()
    leader, other = await one_leader(first, second)
    leaving = asyncio.create_task(leader.election.close())
    with pytest.raises(TimeoutError):
        await other.becomes(Lead, within=0.8 * HEARTBEAT_TIMEOUT)
    await other.becomes(Lead, within=2 * HEARTBEAT_TIMEOUT)
    await leaving


async def test_a_leader_stays_while_its_heartbeats_come_back(join: Callable[[], Member]) -> None:
    member = join()
    await member.becomes(Lead)
    await asyncio.sleep(2.5 * HEARTBEAT_TIMEOUT)
    assert member.changes.empty()
    assert member.election.standing(0) is Standing.LEADER


async def test_after_being_fenced_it_leads_again_on_a_heartbeat_sent_since(join: Callable[[], Member]) -> None:
    member = join()
    await member.becomes(Lead)
    member.election.fenced(0)
    assert member.election.standing(0) is Standing.FENCED
    await member.becomes(Lead, within=HEARTBEAT_TIMEOUT)


async def test_a_member_that_resigns_makes_room_and_may_come_back(join: Callable[[], Member]) -> None:
    first, second = join(), join()
    leader, other = await one_leader(first, second)
    leader.election.resign("for a test")
    leader.election.released(0)
    await other.becomes(Lead, within=2 * HEARTBEAT_TIMEOUT)
    assert leader.election.standing(0) is Standing.STANDBY
    leader.election.rejoin()
    await one_leader(first, second)


async def test_a_member_that_joins_takes_nothing_from_the_leader(join: Callable[[], Member]) -> None:
    first = join()
    await first.becomes(Lead)
    for _ in range(3):
        other = join()
        await asyncio.sleep(0.5)
        await one_leader(first, other)
        assert first.election.standing(0) is Standing.LEADER
