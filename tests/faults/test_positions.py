"""Positions between two real clusters: every offset of one is translated, and both topics are read to check it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from faults.two_clusters import TwoClusters, two_clusters
from support.harvesting import PARTITIONS, Outbox, Process, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.positions.index import TopicIndex
from airflow_outbox.positions.translation import Source, Target, Why, translate
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.extents import TopicPartitionId


@pytest.fixture
def clusters(database: str, kafka: EmbeddedKafka, backup: EmbeddedKafka, topic_prefix: str) -> Iterator[TwoClusters]:
    with two_clusters(database, topic_prefix + "data", kafka, backup, positions={"enabled": True}) as scene:
        yield scene


def names_of(outbox: Outbox) -> KafkaNames:
    config = HarvestConfig.validated(outbox.settings, source="test")
    with psycopg.connect(outbox.database) as connection:
        return KafkaNames.of(config, OutboxTable(connection, config.name).identity().outbox_id)


@dataclass(slots=True)
class Side:
    """One cluster: where each record is, by partition, and its index of extents."""

    records: list[dict[int, int]]
    ends: list[int]
    topic_id: str
    index: TopicIndex

    @classmethod
    def of(cls, outbox: Outbox, config: HarvestConfig, names: KafkaNames) -> Side:
        records: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        for message in outbox.committed():
            records[message.partition()][int(message.value())] = message.offset()
        cluster = Cluster(config.kafka)
        ends = [cluster.end_offset(outbox.topic, partition) for partition in range(PARTITIONS)]
        index = TopicIndex(config, names)
        index.refresh()
        return cls(records, ends, str(cluster.topics([outbox.topic])[outbox.topic].topic_id), index)


def check(clusters: TwoClusters) -> dict[Why, int]:
    """Translate every offset, either way. Return how many there were, by how they were translated."""
    names, reach = names_of(clusters.outbox), clusters.config.by_cluster()
    sides = [
        Side.of(clusters.outbox, reach["primary"], names),
        Side.of(clusters.backup, reach["backup"], names),
    ]
    found: dict[Why, int] = {}
    for source, target in (sides, sides[::-1]):
        for partition in range(PARTITIONS):
            here = TopicPartitionId(clusters.outbox.topic, source.topic_id, partition)
            there = TopicPartitionId(clusters.outbox.topic, target.topic_id, partition)
            on_source, on_target = source.records[partition], target.records[partition]
            assert on_source.keys() == on_target.keys()
            for offset in range(source.ends[partition] + 1):
                translated = translate(
                    offset,
                    Source(here, source.ends[partition], source.index),
                    Target(there, 0, target.ends[partition], target.index),
                )
                assert translated is not None
                unread = [on_target[record] for record, at in on_source.items() if at >= offset]
                assert min(unread, default=translated.offset) >= translated.offset, (offset, translated)
                again = [
                    record for record, at in on_source.items() if at < offset and on_target[record] >= translated.offset
                ]
                if not on_source:
                    assert translated.why is Why.NOTHING
                    continue
                if offset < min(on_source.values()):
                    assert translated.why is Why.UNKNOWN
                    continue
                assert translated.why in (Why.WITHIN, Why.AFTER)
                assert translated.again is not None
                assert len(again) <= translated.again, (offset, translated)
                found[translated.why] = found.get(translated.why, 0) + 1
    for side in sides:
        side.index.close()
    return found


def test_every_offset_is_translated_after_a_leader_was_killed_between_the_clusters(clusters: TwoClusters) -> None:
    clusters.dies(clusters.start(kill="commit on a backup"))
    clusters.start()
    clusters.is_harvested()
    clusters.ends_well()
    found = check(clusters)
    assert found[Why.WITHIN] > clusters.stashed


def test_a_cluster_that_was_away_gets_the_extents_of_what_it_missed(clusters: TwoClusters) -> None:
    clusters.start()
    clusters.stash(400)
    wait_until(lambda: clusters.outbox.left() == 0)
    clusters.detach("backup")
    clusters.stash(400)
    wait_until(lambda: clusters.outbox.left() == 0)
    clusters.attach("backup")
    clusters.stash(400)
    clusters.ends_well()
    assert check(clusters)[Why.WITHIN] > clusters.stashed


def test_harvesting_goes_on_when_the_extents_topic_is_deleted(clusters: TwoClusters) -> None:
    clusters.limits = {"transaction_timeout": 5, "delivery_timeout": 5}
    member = clusters.start()
    clusters.is_harvested()
    topic = names_of(clusters.outbox).extents_topic
    admin = AdminClient({"bootstrap.servers": clusters.outbox.bootstrap})
    admin.delete_topics([topic])[topic].result()
    clusters.is_harvested()
    clusters.ends_well()
    said = "batches on cluster primary go without extents, which makes positions less exact: "
    wait_until(lambda: any(said in note for note in read_verdict(clusters.config).notes), doing=str(member.events))
    wait_until(lambda: without_extents(member) > 0, doing=str(member.events))


def without_extents(member: Process) -> int:
    """How many batches went without extents on the primary, as the member's newest metrics count them."""
    measured = [event["metrics"] for event in member.events if event["event"] == "measured"]
    return int(measured[-1]["batches_without_extents"]["primary"]) if measured else 0
