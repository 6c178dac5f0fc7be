"""Consumer groups of a real broker, classic ones and those of the newer protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.harvesting import PATIENCE, make_topic, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka.page_reader import PartitionOffsets
from airflow_outbox.positions.groups import ConsumerGroups, GroupHasMembersError, are_meant
from airflow_outbox.positions.marks import Committed, Mark

PROTOCOLS = ("classic", "consumer")
PARTITIONS = 2


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_outbox.positions.groups._TIMEOUT", PATIENCE)


@pytest.fixture
def topic(kafka: EmbeddedKafka, topic_prefix: str) -> str:
    topic = topic_prefix + "data"
    make_topic({"bootstrap.servers": kafka.bootstrap}, topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(20):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    producer.flush()
    groups = ConsumerGroups({"bootstrap.servers": kafka.bootstrap})
    marks = {f"{topic_prefix}unused-{n}": {(topic, 0): Mark("primary", 1, 1, at=1)} for n in range(40)}
    wait_until(lambda: set(groups.commit(marks).values()) == {None})  # all coordinators are ready
    return topic


@pytest.fixture
def groups(kafka: EmbeddedKafka) -> ConsumerGroups:
    return ConsumerGroups({"bootstrap.servers": kafka.bootstrap})


def has_read(consumer: Consumer) -> bool:
    message = consumer.poll(0.1)
    return message is not None and message.error() is None


@contextmanager
def reader(kafka: EmbeddedKafka, topic: str, group: str, protocol: str = "classic") -> Iterator[Consumer]:
    """A member of a group, which commits when it is told to."""
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: has_read(consumer))
        yield consumer


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_mark_is_committed_as_metadata_and_read_back(
    protocol: str, kafka: EmbeddedKafka, topic: str, topic_prefix: str, groups: ConsumerGroups
) -> None:
    group = topic_prefix + "group"
    marks = {(topic, n): Mark("primary", 7 + n, 3 + n, at=time.time_ns() // 1_000_000) for n in range(PARTITIONS)}
    marked = {place: Committed(mark.offset, mark) for place, mark in marks.items()}

    wait_until(lambda: groups.commit({group: marks}) == {group: None})  # a coordinator may have to load
    assert groups.committed([group]) == {group: marked}
    assert groups.members_by_group()[group] is False

    with reader(kafka, topic, group, protocol) as consumer:
        assert groups.members_by_group()[group] is True
        found = consumer.committed([TopicPartition(topic, n) for n in range(PARTITIONS)], timeout=PATIENCE)
        assert [each.offset for each in found] == [3, 4]
        [refusal] = groups.commit({group: marks}).values()
        assert isinstance(refusal, GroupHasMembersError)
        consumer.commit(offsets=[TopicPartition(topic, 0, 6)], asynchronous=False)
        assert groups.committed([group]) == {group: {**marked, (topic, 0): Committed(6)}}

    wait_until(lambda: groups.members_by_group()[group] is False)
    assert groups.commit({group: marks}) == {group: None}
    assert groups.committed([group]) == {group: marked}


@pytest.mark.parametrize("automatic", [False, True])
def test_a_client_that_goes_on_from_a_mark_does_not_keep_it(
    automatic: bool, kafka: EmbeddedKafka, topic: str, topic_prefix: str, groups: ConsumerGroups
) -> None:
    group = topic_prefix + "group"
    marks = {(topic, n): Mark("primary", 7, 3, at=1) for n in range(PARTITIONS)}
    wait_until(lambda: groups.commit({group: marks}) == {group: None})
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": automatic}
    with closing(Consumer({**settings, "auto.offset.reset": "earliest"})) as consumer:
        consumer.subscribe([topic])
        wait_until(lambda: has_read(consumer))
        if not automatic:
            consumer.commit(asynchronous=False)
    found = groups.committed([group])[group]
    assert isinstance(found, dict)
    assert {each for each in found.values() if each.offset != 3 and each.mark is not None} == set()
    assert any(each.offset > 3 for each in found.values())


@pytest.mark.usefixtures("topic")
def test_a_topic_that_is_not_there_is_an_answer(groups: ConsumerGroups, topic_prefix: str) -> None:
    marks = {(topic_prefix + "none", 0): Mark("primary", 1, 1, at=1)}
    [refusal] = groups.commit({topic_prefix + "group": marks}).values()
    assert isinstance(refusal, KafkaError)
    assert not isinstance(refusal, GroupHasMembersError)
    assert groups.committed([topic_prefix + "other"]) == {topic_prefix + "other": {}}


def test_many_groups_are_committed_at_a_time(groups: ConsumerGroups, topic: str, topic_prefix: str) -> None:
    marks = {f"{topic_prefix}{n}": {(topic, 0): Mark("primary", n, n, at=1)} for n in range(300)}
    wait_until(lambda: set(groups.commit(marks).values()) == {None})
    found = groups.committed(marks)
    assert [found[group][topic, 0].offset for group in marks] == [*range(300)]  # type: ignore[index]


def test_logs_reach_from_start_to_end(groups: ConsumerGroups, topic: str) -> None:
    assert groups.offsets_of([(topic, 0), (topic, 1)]) == {
        (topic, 0): PartitionOffsets(0, 10, 10),
        (topic, 1): PartitionOffsets(0, 10, 10),
    }
    assert groups.topic_ids([topic, topic + "none"])[topic][1] == PARTITIONS


def test_a_broker_that_is_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_outbox.positions.groups._TIMEOUT", 1.0)
    away = ConsumerGroups({"bootstrap.servers": "127.0.0.1:1"})
    for ask in (away.members_by_group, lambda: away.committed(["some"])):
        with pytest.raises(KafkaError, match="Kafka"):
            ask()


def test_patterns_take_groups_in_and_out() -> None:
    groups = ["orders-a", "orders-b", "orders-audit", "else"]
    assert are_meant(groups, ["orders-*", "!*-audit"]) == ["orders-a", "orders-b"]
    assert are_meant(groups, ["!orders-*"]) == []
    assert are_meant(groups, ["*"]) == groups
