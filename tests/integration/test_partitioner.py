"""Partitions are chosen as Kafka's client chooses them."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.kafka.partitioner import Partitioner, murmur2
from airflow_outbox.values.pages import OutboxRow

PARTITIONS = 7


def row(topic: str, key: str | bytes, partition: int | None = None) -> OutboxRow:
    return (1, topic, key, None, [], [], partition, len(key), None)


def keys(seed: int) -> list[str | bytes]:
    chance = random.Random(seed)
    texts = ["".join(chance.choice("aé€𝄞 0") for _ in range(chance.randrange(1, 40))) for _ in range(300)]
    return [*texts, *(chance.randbytes(chance.randrange(1, 40)) for _ in range(300))]


@pytest.mark.parametrize("name", ["murmur2_random", "consistent_random"])
def test_as_the_client_does(kafka: EmbeddedKafka, topic_prefix: str, name: str) -> None:
    topic = f"{topic_prefix}.{name}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": name})
    given = keys(1)
    went: list[int | None] = [None] * len(given)
    for number, key in enumerate(given):
        producer.produce(
            topic, "", key, on_delivery=lambda _, message, number=number: went.__setitem__(number, message.partition())
        )
    assert producer.flush(PATIENCE) == 0
    partitioner = Partitioner(name)
    twice = [row(topic, key) for key in given for _ in range(2)]
    chosen = partitioner.choose(twice, {topic: PARTITIONS})
    assert chosen is not None
    assert chosen[::2] == chosen[1::2] == went
    assert len(set(went)) == PARTITIONS


def test_a_record_may_name_its_partition_and_each_topic_has_as_many_as_it_has() -> None:
    rows = [row("one", "k"), row("many", "k"), row("many", "k", 3)]
    assert Partitioner("murmur2_random").choose(rows, {"one": 1, "many": 1000}) == [0, murmur2(b"k") % 1000, 3]


@pytest.mark.parametrize("empty", ["", b""])
def test_what_the_client_chooses_at_random_is_left_to_it(empty: str | bytes) -> None:
    rows = [row("t", "k"), row("t", "k"), row("t", "k"), row("t", empty)]
    assert Partitioner("murmur2_random").choose(rows, {"t": 4}) is None
    assert Partitioner("murmur2_random").choose(rows[:3], {"t": 4}) is not None
    assert Partitioner("fnv1a").choose(rows[:3], {"t": 4}) is None


@pytest.fixture
def judged_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_outbox.harvest.kafka.partitioner._JUDGED_AT_ONCE", 200)
    monkeypatch.setattr("airflow_outbox.harvest.kafka.partitioner._LEFT_ALONE", 1600)


@pytest.mark.usefixtures("judged_soon")
def test_keys_that_do_not_come_again_are_left_to_the_client_for_a_while() -> None:
    partitioner = Partitioner("murmur2_random")
    pages = [[row("t", f"{page} {number}") for number in range(100)] for page in range(21)]
    chosen = [partitioner.choose(page, {"t": 4}) is not None for page in pages]
    assert chosen == [True] * 2 + [False] * 16 + [True] * 2 + [False]


@pytest.mark.usefixtures("judged_soon")
@pytest.mark.parametrize("first_pages", [[100], [10, 30, 60]])
def test_keys_that_come_again_are_remembered(first_pages: list[int]) -> None:
    partitioner = Partitioner("murmur2_random")
    keys = iter(range(100))
    pages = [[row("t", str(next(keys))) for _ in range(count)] for count in first_pages]
    pages += [[row("t", str(number)) for number in range(100)]] * 40
    assert all(partitioner.choose(page, {"t": 4}) is not None for page in pages)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_outbox.harvest.kafka.partitioner._MOST_KEYS", 100)
    partitioner = Partitioner("murmur2_random")
    for start in range(0, 1000, 30):
        rows = [row("t", str(start + number // 2)) for number in range(60)]
        chosen = partitioner.choose(rows, {"t": 4})
        assert chosen == [murmur2(str(start + number // 2).encode()) % 4 for number in range(60)]
        assert partitioner._hashes is not None
        assert len(partitioner._hashes) <= 100 + 30
