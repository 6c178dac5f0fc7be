"""The ports `Log` and `TransactionalLog`, real and simulated, pass one suite: what the engine relies on, so that the
simulation can be trusted.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as BrokerError
from simulation.log import SimulatedLog, SimulatedTransactionalLog, kafka_link
from simulation.world import World
from support.harvesting import PATIENCE, make_topic

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import HistoryError, KafkaError, RecordsRefusedError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_ledger_topic
from airflow_outbox.harvest.kafka.producer import KafkaLog, producer_settings
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.kafka.transactional_log import KafkaTransactionalLog
from airflow_outbox.harvest.ports import Delivery, Log, TransactionalLog
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Head
from airflow_outbox.values.pages import OutboxRow
from airflow_outbox.values.records import MarkedRecord, Snapshot
from airflow_outbox.values.refusals import Cause


def config(kafka: EmbeddedKafka, **settings: Any) -> HarvestConfig:
    return HarvestConfig.validated(
        {"data_source": "", "kafka": {"bootstrap.servers": kafka.bootstrap}, **settings}, source="test"
    )


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
        messages = consumer.consume(count, timeout=PATIENCE)
        return [
            (m.key().decode(), m.value() and m.value().decode(), [(n, v.decode()) for n, v in m.headers() or []])
            for m in messages
        ]
    finally:
        consumer.close()


def seen_in(world: World, topic: str) -> list[tuple[Any, ...]]:
    return [
        (key, value, list(zip(names, values, strict=True)))
        for (name, _), partition in world.broker.partitions.items()
        if name == topic
        for _, _, key, value, names, values, *_ in [stored.value for stored in partition.committed()]
    ]


@pytest.fixture(params=["real", "simulated"])
async def log(request: pytest.FixtureRequest, topic_prefix: str) -> AsyncIterator[LogUnderTest]:
    topic = topic_prefix + "data"
    if request.param == "simulated":
        world = World(1)
        simulated = SimulatedLog(world.broker, kafka_link(world.network), individually=False)
        yield LogUnderTest(simulated, topic, lambda: seen_in(world, topic))
        await simulated.close()
        return
    kafka = request.getfixturevalue("kafka")
    make_topic({"bootstrap.servers": kafka.bootstrap}, topic, partitions=1)
    real = await KafkaLog.open(producer_settings(config(kafka)), book=TopicCache(config(kafka).kafka))
    yield LogUnderTest(real, topic, lambda: consumed(kafka.bootstrap, topic, 3))
    await real.close()


async def reports(log: Log, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
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


@pytest.mark.parametrize("values", [[], ["a", "b"]], ids=["a value too few", "a value too many"])
async def test_what_a_look_tells_is_known_before_it_is_sent(log: LogUnderTest, values: list[Any]) -> None:
    bad = MarkedRecord(77, log.topic, "k", "v", ["h"], values, None)
    fine = MarkedRecord(78, log.topic, "k", "v", ["h"], ["a"], None)
    refusals = await log.log.examine([bad, fine])
    assert {number: refusal.cause for number, refusal in refusals.items()} == {77: Cause.HEADERS}


async def test_what_only_sending_tells_is_reported_with_its_id(log: LogUnderTest) -> None:
    log.log.send(MarkedRecord(77, log.topic, "k", "v" * 2_000_000, [], [], None))
    log.log.send(MarkedRecord(78, log.topic, "k", "fine", [], [], None))
    found = {delivery.record.id: delivery.error for delivery in await reports(log.log, 2)}
    assert isinstance(found[77], RecordsRefusedError)
    assert found[77].records == [77]
    assert found[78] is None


# Transactional logs


@dataclass(frozen=True, slots=True)
class TransactionalLogsUnderTest:
    """A way to make logs of one shard, under the configured transactional id or another, the topic to use, and what a
    consumer that reads committed sees there.
    """

    new: Callable[[str], Awaitable[TransactionalLog]]
    topic: str
    seen: Callable[[], list[tuple[Any, ...]]]


@pytest.fixture(params=["real", "simulated"])
async def logs(request: pytest.FixtureRequest, topic_prefix: str) -> AsyncIterator[TransactionalLogsUnderTest]:
    topic = topic_prefix + "data"
    opened: list[TransactionalLog] = []
    if request.param == "simulated":
        world = World(1)

        async def new(transactional_id: str) -> TransactionalLog:
            opened.append(SimulatedTransactionalLog(world.broker, kafka_link(world.network), transactional_id))
            return opened[-1]

        yield TransactionalLogsUnderTest(new, topic, lambda: seen_in(world, topic))
        return
    kafka = request.getfixturevalue("kafka")
    make_topic({"bootstrap.servers": kafka.bootstrap}, topic, partitions=1)
    outbox_id = uuid4()
    settings = config(kafka)
    make_ledger_topic(settings, KafkaNames.of(settings, outbox_id))

    async def open_real(transactional_id: str) -> TransactionalLog:
        names = dataclasses.replace(
            KafkaNames.of(settings, outbox_id), transactional_id=topic_prefix + transactional_id
        )
        opened.append(await KafkaTransactionalLog.open(settings, names, shard=0, book=TopicCache(settings.kafka)))
        return opened[-1]

    yield TransactionalLogsUnderTest(open_real, topic, lambda: committed(kafka.bootstrap, topic))
    for log in opened:
        await log.close()


def committed(bootstrap: str, topic: str) -> list[tuple[Any, ...]]:
    """The committed records of a topic of one partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[Any, ...]] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(PATIENCE)) is not None:
            if (error := message.error()) is not None:
                if error.code() == BrokerError._PARTITION_EOF:
                    return found
                continue
            headers = [(name, value.decode()) for name, value in message.headers() or []]
            found.append((message.key().decode(), message.value() and message.value().decode(), headers))
        raise AssertionError(f"no end came after {found}")
    finally:
        consumer.close()


def rows(topic: str, *numbers: int) -> list[OutboxRow]:
    return [(number, topic, f"k{number}", f"v{number}", ["h"], ["1"], 0, number, None) for number in numbers]


def sights(*numbers: int) -> list[tuple[Any, ...]]:
    return [(f"k{number}", f"v{number}", [("h", "1")]) for number in numbers]


def entry(batch: int, *numbers: int) -> Entry:
    runs = tuple((number, number) for number in numbers)
    return Entry(batch, uuid4(), 1, Snapshot(5, 9, frozenset({5})), runs, (Extent("t", 0, 3, 4, 2),))


def head(batch: int) -> Head:
    return Head(uuid4(), 1, uuid4(), batch, 0, 99, 3, ((batch, 1),))


async def fenced(logs: TransactionalLogsUnderTest, transactional_id: str = "one") -> TransactionalLog:
    """A log that has fenced its predecessors, and begun a transaction."""
    log = await logs.new(transactional_id)
    await log.fence()
    assert not await log.begin()
    return log


async def test_a_commit_makes_records_and_ledger_visible_together(logs: TransactionalLogsUnderTest) -> None:
    log = await fenced(logs)
    empty = await log.ledger(0)
    assert (empty.head, empty.entries, empty.end) == (None, (), 0)
    extents = [*await log.publish(rows(logs.topic, 1, 2)), *await log.publish(rows(logs.topic, 3))]
    assert [(extent.topic, extent.partition, extent.count) for extent in extents] == [
        (logs.topic, 0, 2),
        (logs.topic, 0, 1),
    ]
    assert [extents[0].first, extents[0].last, extents[1].first] == [0, 1, 2]
    assert logs.seen() == []
    first, told = entry(1, 1, 2, 3), head(1)
    offset = await log.commit([*first.records(), told.record()])
    await log.await_readable()
    assert logs.seen() == sights(1, 2, 3)
    ledger = await log.ledger(0)
    assert (ledger.head, ledger.head_offset, ledger.entries) == (told, offset, (first,))
    assert ledger.topic_id == empty.topic_id
    assert ledger.end > offset
    await log.begin()
    extents = [*await log.publish(rows(logs.topic, 4))]
    assert extents[0].first > 2
    later = await log.commit([*entry(2, 4).records(), ("batch/1/0", None), head(2).record()])
    assert later > offset
    assert [found.batch for found in (await log.ledger(offset)).entries] == [2]
    assert [found.batch for found in (await log.ledger(0)).entries] == [2]


async def test_a_ledger_that_is_written_ahead_is_visible_with_its_commit(logs: TransactionalLogsUnderTest) -> None:
    log = await fenced(logs)
    empty = await log.glimpse(0)
    await log.publish(rows(logs.topic, 1, 2), [0, 0])
    first = entry(1, 1, 2)
    await log.write([*first.records(), head(1).record()])
    assert (logs.seen(), (await log.glimpse(0)).entries) == ([], ())
    offset = await log.commit([])
    await log.await_readable()
    assert logs.seen() == sights(1, 2)
    ledger = await log.ledger(empty.end)
    assert (ledger.entries, ledger.head_offset) == ((first,), offset)


async def test_a_ledger_that_is_written_ahead_and_not_committed_is_gone(logs: TransactionalLogsUnderTest) -> None:
    log = await fenced(logs)
    await log.publish(rows(logs.topic, 1))
    await log.write([*entry(1, 1).records(), head(1).record()])
    successor = await fenced(logs)
    ledger = await successor.ledger(0)
    assert (logs.seen(), ledger.entries, ledger.head) == ([], (), None)
    with pytest.raises(KafkaError):
        await log.commit([])
    assert logs.seen() == []


async def test_what_is_given_up_is_never_seen(logs: TransactionalLogsUnderTest) -> None:
    log = await fenced(logs)
    await log.publish(rows(logs.topic, 1, 2))
    await log.close()
    successor = await fenced(logs)
    await successor.publish(rows(logs.topic, 3))
    await successor.commit([head(1).record()])
    await successor.await_readable()
    assert logs.seen() == sights(3)


async def test_a_fenced_log_commits_nothing(logs: TransactionalLogsUnderTest) -> None:
    old = await fenced(logs)
    await old.publish(rows(logs.topic, 1))
    new = await fenced(logs)
    assert (await new.ledger(0)).head is None
    with pytest.raises(KafkaError):
        await old.commit([head(1).record()])
    assert (await new.ledger(0)).head is None
    await new.publish(rows(logs.topic, 2))
    told = head(1)
    await new.commit([told.record()])
    await new.await_readable()
    assert logs.seen() == sights(2)
    assert (await new.ledger(0)).head == told


async def test_a_log_of_another_name_is_fenced_on_request(logs: TransactionalLogsUnderTest) -> None:
    old = await fenced(logs, "one")
    await old.publish(rows(logs.topic, 1))
    new = await logs.new("other")
    await new.fence(old.transactional_ids)
    await new.begin()
    with pytest.raises(KafkaError):
        await old.commit([head(1).record()])
    await new.publish(rows(logs.topic, 2))
    await new.commit([head(1).record()])
    await new.await_readable()
    assert logs.seen() == sights(2)


async def test_a_ledger_that_does_not_reach_so_far_is_of_another_history(logs: TransactionalLogsUnderTest) -> None:
    log = await fenced(logs)
    await log.publish(rows(logs.topic, 1))
    await log.commit([head(1).record()])
    await log.ledger(0)  # now the end of the transaction is in it, which Kafka writes after the commit
    end = (await log.ledger(0)).end
    assert (await log.ledger(end)).head is None
    with pytest.raises(HistoryError):
        await log.ledger(end + 1)


async def test_one_transaction_is_filled_while_another_is_committed(logs: TransactionalLogsUnderTest) -> None:
    log = await fenced(logs)
    await log.publish(rows(logs.topic, 1))
    committing = asyncio.create_task(log.commit([*entry(1, 1).records(), head(1).record()]))
    await asyncio.sleep(0)
    await log.begin()
    await log.publish(rows(logs.topic, 2))
    first = await committing
    await log.await_readable()
    assert (log.readable, logs.seen()) == (1, sights(1))
    second = await log.commit([*entry(2, 2).records(), head(2).record()])
    assert second > first
    await log.await_readable()
    assert logs.seen() == sights(1, 2)
    assert [found.batch for found in (await log.ledger(0)).entries] == [1, 2]


async def test_all_producers_are_fenced_that_have_a_transaction_open(logs: TransactionalLogsUnderTest) -> None:
    old = await fenced(logs)
    await old.publish(rows(logs.topic, 1))
    await old.begin()
    await old.publish(rows(logs.topic, 2))
    new = await fenced(logs)
    for number in (1, 2):
        with pytest.raises(KafkaError):
            await old.commit([head(number).record()])
    await new.publish(rows(logs.topic, 3))
    await new.commit([head(1).record()])
    await new.await_readable()
    assert logs.seen() == sights(3)


async def test_the_next_transactions_tell_what_can_be_read(logs: TransactionalLogsUnderTest) -> None:
    log = await logs.new("one")
    await log.fence()
    for number in range(1, 6):
        await log.begin()
        await log.publish(rows(logs.topic, number))
        assert log.readable == max(0, number - len(log.transactional_ids))
        await log.commit([head(number).record()])
    assert log.readable == 5 - len(log.transactional_ids)
    await log.await_readable()
    assert log.readable == 5
    assert logs.seen() == sights(1, 2, 3, 4, 5)


async def test_a_batch_without_records_is_readable_at_once(logs: TransactionalLogsUnderTest) -> None:
    log = await fenced(logs)
    await log.commit([head(1).record()])
    await log.await_readable()
    assert log.readable == 1


async def test_a_glimpse_waits_for_no_transaction_and_disturbs_no_producer(logs: TransactionalLogsUnderTest) -> None:
    log, onlooker = await fenced(logs), await logs.new("onlooker")
    assert (await onlooker.glimpse(0)).head is None
    await log.publish(rows(logs.topic, 1))
    told = head(1)
    offset = await log.commit([*entry(1, 1).records(), told.record()])
    await log.await_readable()
    await log.begin()
    await log.publish(rows(logs.topic, 2))
    seen = await onlooker.glimpse(0)
    assert (seen.head, seen.head_offset, [found.batch for found in seen.entries]) == (told, offset, [1])
    assert (await onlooker.glimpse(offset)).head == told
    assert (await onlooker.glimpse(offset + 1000)).head is None
    await log.commit([*entry(2, 2).records(), head(2).record()])
    await log.await_readable()
    assert logs.seen() == sights(1, 2)
