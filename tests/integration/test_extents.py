"""The extents topic on a real broker: what a term writes into it, and what is read from it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.harvesting import make_outbox, make_topic, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import ConfigurationError, KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka import extents_writer
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.extents_reader import ExtentsReader
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.kafka.transactional_log import KafkaTransactionalLog
from airflow_outbox.harvest.protocol.extents import ExtentsRecord
from airflow_outbox.harvest.protocol.ledger import Entry, Head
from airflow_outbox.operate.acls import needed_acls
from airflow_outbox.operate.check import examine
from airflow_outbox.operate.finding import Severity
from airflow_outbox.positions.index import TopicIndex
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.extents import TopicPartitionId
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.pages import OutboxRow
from airflow_outbox.values.records import Snapshot

NewLog = Callable[[], Awaitable[KafkaTransactionalLog]]


@dataclass(frozen=True, slots=True)
class PublishedOutbox:
    """An outbox's names on a real cluster, with positions, and a data topic of one partition."""

    config: HarvestConfig
    names: KafkaNames
    outbox_id: UUID
    topic: str
    new_log: NewLog
    admin: AdminClient
    cluster: Cluster

    def records(self) -> list[ExtentsRecord]:
        """All records, once no transaction is open: the broker writes its end after its answer."""
        reader = ExtentsReader(self.config, self.names, cluster=Cluster(self.config.kafka))

        def is_settled() -> bool:
            reaches = reader.reaches([0])[0]
            return reaches.stable == reaches.end

        try:
            wait_until(is_settled)
            reaches = reader.reaches([0])[0]
            return reader.read(0, reaches.start, reaches.stable)
        finally:
            reader.close()

    def topic_id(self) -> str | None:
        """The present id of the extents topic, if the broker knows one."""
        found = self.cluster.topics([self.names.extents_topic])[self.names.extents_topic]
        return None if isinstance(found, BrokerError) else str(found.topic_id)

    def delete_extents(self) -> None:
        self.admin.delete_topics([self.names.extents_topic])[self.names.extents_topic].result()
        wait_until(lambda: self.topic_id() is None)

    def make_extents(self) -> None:
        make_internal_topics(self.config, self.names)
        wait_until(self.topic_id)

    async def term(self) -> KafkaTransactionalLog:
        """A log that goes on."""
        log = await self.new_log()
        await log.fence()
        await log.ledger(0)
        return log

    async def publish(self, log: KafkaTransactionalLog, number: int, *, records: int = 2) -> None:
        await log.begin()
        rows: list[OutboxRow] = [
            (each, self.topic, "k", "v", [], [], 0, 9, None) for each in range(number * 10, number * 10 + records)
        ]
        extents = await log.publish(rows) if rows else ()
        view = uuid4()
        entry = Entry(number, view, 1, Snapshot(1, 1), (), tuple(extents), outbox_id=self.outbox_id, shard=0)
        head = Head(self.outbox_id, 1, view, number, 0, 99, 3)
        await log.commit([*entry.records(), head.record()], entry=entry)

    def end(self, topic: str) -> int:
        return Cluster(self.config.kafka).end_offset(topic, 0)


@pytest.fixture
async def scene(kafka: EmbeddedKafka, topic_prefix: str) -> AsyncIterator[PublishedOutbox]:
    opened: list[KafkaTransactionalLog] = []
    settings = {"data_source": "", "kafka": {"bootstrap.servers": kafka.bootstrap}, "positions": {"enabled": True}}
    config = HarvestConfig.validated(settings, source="test")
    outbox_id, topic = uuid4(), topic_prefix + "data"
    names = KafkaNames.of(config, outbox_id)
    made = make_internal_topics(config, names)
    assert names.extents_topic in made

    async def new_log() -> KafkaTransactionalLog:
        opened.append(await KafkaTransactionalLog.open(config, names, shard=0, book=TopicCache(config.kafka)))
        return opened[-1]

    scene = PublishedOutbox(
        config, names, outbox_id, topic, new_log, AdminClient({**config.kafka}), Cluster(config.kafka)
    )
    make_topic({**config.kafka}, topic, partitions=1)
    yield scene
    for log in opened:
        await log.close()


async def test_each_batch_has_a_record_and_a_later_term_goes_on(scene: PublishedOutbox) -> None:
    log = await scene.term()
    await scene.publish(log, 1)
    await scene.publish(log, 2, records=0)
    await scene.publish(log, 3, records=1)
    await log.close()
    await scene.publish(await scene.term(), 4)
    found = scene.records()
    assert [record.batch.number for record in found] == [1, 2, 3, 4]
    assert [record.since for record in found] == [1, 1, 1, 1]
    assert [[(each.first, each.last, each.count, each.before) for each in record.extents] for record in found] == [
        [(0, 1, 2, None)],
        [],
        [(3, 3, 1, 0)],  # the end of the first transaction is at 2
        [(5, 6, 2, found[2].offset)],
    ]
    topic_id = str(Cluster(scene.config.kafka).topics([scene.topic])[scene.topic].topic_id)
    assert {each.where for record in found for each in record.extents} == {TopicPartitionId(scene.topic, topic_id, 0)}


async def test_what_is_not_committed_has_no_extents(scene: PublishedOutbox) -> None:
    log = await scene.term()
    await log.begin()
    await log.publish([(1, scene.topic, "k", "v", [], [], 0, 9, None)])
    await log.close()
    await scene.publish(await scene.term(), 1)
    [record] = scene.records()
    assert [extent.first for extent in record.extents] == [2]  # the aborted transaction has its end at 1


async def test_an_index_reads_them_however_the_topic_is_shortened(scene: PublishedOutbox) -> None:
    log = await scene.term()
    for number in range(1, 6):
        await scene.publish(log, number)
    await log.await_readable()
    where = TopicPartitionId(scene.topic, scene.records()[0].extents[0].where.topic_id, 0)
    index = TopicIndex(scene.config, scene.names, scene.outbox_id)
    index.refresh()
    around = index.at_offset(0, where, 7)
    assert around.upto is not None
    assert around.after is not None
    assert (around.upto.batch.number, around.after.batch.number) == (3, 4)
    assert index.at_batch(0, where, (1, 3)) == around
    assert index.is_unbroken_after(0, (1, 3))
    assert index.is_whole(0)
    gone = TopicPartition(scene.names.extents_topic, 0, around.upto.before or 0)
    scene.admin.delete_records([gone])[gone].result()
    index.refresh()
    assert index.at_offset(0, where, 7) == around
    fresh = TopicIndex(scene.config, scene.names, scene.outbox_id)
    fresh.refresh()
    assert fresh.at_offset(0, where, 0).upto is None
    assert fresh.at_offset(0, where, 7) == around
    fresh.close()
    index.close()


async def test_an_index_forgets_a_topic_that_was_made_again(scene: PublishedOutbox) -> None:
    """As when a cluster is reset: by then it may be longer than the earlier one was."""
    log = await scene.term()
    for number in (1, 2):
        await scene.publish(log, number)
    await log.await_readable()
    await log.close()
    where = scene.records()[0].extents[0].where
    index = TopicIndex(scene.config, scene.names, scene.outbox_id)
    index.refresh()
    assert index.at_offset(0, where, 99).upto is not None
    scene.delete_extents()
    scene.make_extents()
    log = await scene.term()
    for number in range(3, 9):
        await scene.publish(log, number)
    await log.await_readable()
    found = {record.batch.number: record.extents[0].first for record in scene.records()}
    index.refresh()
    assert found.keys() == {*range(3, 9)}
    for number, first in found.items():
        extent = index.at_offset(0, where, first).upto
        assert extent is not None
        assert extent.batch.number == number
    index.close()


async def test_a_missing_topic_keeps_no_batch_and_is_used_once_it_is_there(
    scene: PublishedOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents_writer, "_DONE_WITHOUT_FOR", 0.0)
    scene.delete_extents()
    log = await scene.term()
    await scene.publish(log, 1)
    with pytest.raises(KafkaError, match=r"extents does not exist. Run `airflow-outbox init`"):
        TopicIndex(scene.config, scene.names).refresh()
    scene.make_extents()
    for number in range(2, 300):
        await scene.publish(log, number)
        await asyncio.sleep(0.1)  # the topic is looked at beside the batches
        if len(found := scene.records()) == 2:
            break
    assert [record.batch.number for record in found] == [number - 1, number]
    assert [record.since for record in found] == [number - 1] * 2


async def test_a_topic_that_refuses_extents_fails_two_terms_and_no_more(scene: PublishedOutbox) -> None:
    """It takes the ends of transactions, but nothing larger."""
    told: list[str | None] = []
    failures = extents_writer.ExtentsFailures(told.append)
    scene.delete_extents()  # a new one has its settings from the beginning
    make_topic({**scene.config.kafka}, scene.names.extents_topic, partitions=1, config={"max.message.bytes": "200"})

    async def term() -> KafkaTransactionalLog:
        log = await KafkaTransactionalLog.open(
            scene.config, scene.names, shard=0, book=TopicCache(scene.config.kafka), failures=failures
        )
        await log.fence()
        await log.ledger(0)
        return log

    for _ in range(2):
        log = await term()
        with pytest.raises(KafkaError, match=r"the extents were not written: .*Check topic .*extents"):
            await scene.publish(log, 1)
        await log.close()
    log = await term()
    await scene.publish(log, 1)
    await scene.publish(log, 2)
    await log.close()
    assert scene.records() == []
    refused = f"topic {scene.names.extents_topic} has refused them 2 times in a row. Check its settings"
    assert told == [refused, refused]


async def test_without_positions_there_is_no_topic_and_no_record(scene: PublishedOutbox) -> None:
    config = scene.config.model_copy(update={"positions": type(scene.config.positions)()})
    names = dataclasses.replace(KafkaNames.of(config, uuid4()))
    assert names.extents_topic not in make_internal_topics(config, names)
    log = await KafkaTransactionalLog.open(config, names, shard=0, book=TopicCache(config.kafka))
    await log.fence()
    await log.ledger(0)
    await scene.publish(log, 1)
    await log.close()
    assert names.extents_topic not in Cluster(config.kafka).topic_names()
    assert scene.records() == []


def test_the_acls_name_the_topic_where_positions_are_on() -> None:
    settings = {"data_source": "", "kafka": {"bootstrap.servers": "h:9092"}}
    on, off = (
        HarvestConfig.validated({**settings, "positions": {"enabled": enabled}}, source="test")
        for enabled in (True, False)
    )
    names = KafkaNames.of(on, UUID(int=1))

    def about(config: HarvestConfig) -> dict[str, str]:
        acls = needed_acls(config, names, [], layouts=[Layout(), Layout(2, 2)])
        return {acl.operation: acl.purpose for acl in acls if acl.name == names.extents_topic}

    assert about(off) == {}
    assert about(on) == {
        "READ": "harvest",
        "WRITE": "harvest",
        "CREATE": "init",
        "DESCRIBE_CONFIGS": "check",
        "ALTER": "reshard",
    }


def test_positions_need_exactly_once() -> None:
    settings = {"data_source": "", "kafka": {"bootstrap.servers": "h:9092"}, "positions": {"enabled": True}}
    with pytest.raises(ConfigurationError, match=r"positions\.enabled needs delivery: exactly_once"):
        HarvestConfig.validated({**settings, "delivery": "at_least_once"}, source="test")


def test_check_finds_extents_that_are_not_kept_as_long_as_the_records(
    database: str, kafka: EmbeddedKafka, topic_prefix: str
) -> None:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", positions={"enabled": True})
    outbox.stash(1)
    config = HarvestConfig.validated(outbox.settings, source="test")
    with psycopg.connect(database) as connection:
        extents = KafkaNames.of(config, OutboxTable(connection, config.name).identity().outbox_id).extents_topic
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def alter(topic: str, **settings: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        [altered] = admin.incremental_alter_configs([resource]).values()
        altered.result()

    def about_retention() -> list[str]:
        return [finding.text for finding in examine(config) if "retention" in finding.text]

    assert about_retention() == []
    alter(extents, retention_ms="3600000", retention_bytes="1000")
    wait_until(lambda: len(about_retention()) == 2)  # the broker tells it some time after its answer
    [size, time] = about_retention()
    assert "is cut to 1000 bytes" in size
    assert f"topic {outbox.topic} keeps records for 7 days, 0:00:00, but topic {extents}, the extents, only " in time
    assert "for 1:00:00" in time
    assert time.endswith("Set its retention.ms to 604800000")
    alter(outbox.topic, cleanup_policy="compact")
    wait_until(lambda: about_retention()[1].endswith("Set its retention.ms to -1"))
    admin.delete_topics([extents])[extents].result()

    def missing() -> list[str]:
        return [finding.text for finding in examine(config) if finding.severity is Severity.MISSING]

    wait_until(lambda: missing() == [f"topic {extents} does not exist. Run `airflow-outbox init`"])
