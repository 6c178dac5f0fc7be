"""The cache of topics, held against a real broker."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from support.harvesting import PATIENCE, make_topic, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.kafka import topic_cache
from airflow_outbox.harvest.kafka.record_size import size_for_broker
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.values.records import MarkedRecord
from airflow_outbox.values.refusals import Cause, Refusal

LIMIT = 5000
NOISE = random.Random(1).randbytes(2 * LIMIT)
LZ4 = {"compression.type": "lz4"}


class Topic:
    """A topic of one partition that takes records of 5000 bytes, and a book that knows it."""

    def __init__(self, kafka: EmbeddedKafka, name: str) -> None:
        self.name = name
        self.kafka = {"bootstrap.servers": kafka.bootstrap}
        self.admin = AdminClient(self.kafka)
        make_topic(self.kafka, name, partitions=1, config={"max.message.bytes": str(LIMIT)})

    def record(self, value: str | bytes = "v", *, key: str = "k", partition: int | None = None) -> MarkedRecord:
        return MarkedRecord(1, self.name, key, value, ["h", "i"], ["1", "2"], partition)

    def book(self, **producer: Any) -> TopicCache:
        """A book for which Kafka has refused something of the topic."""
        book = TopicCache(self.kafka, producer=producer, own=("ledger",))
        book.doubt(self.name)
        return book

    def set_limit(self, limit: int) -> None:
        entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result()

    def takes(self, record: MarkedRecord, **settings: Any) -> bool:
        """Whether the broker does."""
        found: list[KafkaError | None] = []
        producer = Producer({**self.kafka, **settings})
        headers = list(zip(record.header_names, record.header_values, strict=True))
        producer.produce(
            record.topic,
            record.value,
            record.key,
            headers=headers,  # type: ignore[arg-type]
            on_delivery=lambda error, _: found.append(error),
        )
        assert producer.flush(PATIENCE) == 0
        assert found[0] is None or found[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
        return found[0] is None


def cause(book: TopicCache, record: MarkedRecord, *, again: bool = False) -> Cause | None:
    refusals: dict[int, Refusal] = book.examine([record], again=again)
    return refusals[record.id].cause if refusals else None


@pytest.fixture
def topic(kafka: EmbeddedKafka, topic_prefix: str) -> Iterator[Topic]:
    return Topic(kafka, topic_prefix + "small")


def test_what_passes_on_another_cluster_passes_where_its_topics_are_known_and_plain(topic: Topic) -> None:
    book = TopicCache(topic.kafka)
    limit = 7 * book._client_limit // 8
    assert not book.passes_too({topic.name}, largest=1)
    assert not book.examine([topic.record()], again=False)
    assert book.passes_too({topic.name}, largest=limit)
    assert not book.passes_too({topic.name}, largest=limit + 1)
    assert not book.passes_too({topic.name, "another"}, largest=1)
    book.doubt(topic.name)
    assert not book.passes_too({topic.name}, largest=1)


def test_what_was_known_until_lately_is_believed_if_it_is_not_doubted(topic: Topic) -> None:
    book, record = TopicCache(topic.kafka), topic.record()
    names = {topic.name, "other"}
    assert book.unknown(names) == names
    book.look_up({topic.name})
    assert book.unknown(names) == {"other"}
    book._known_until = 0.0
    assert book.unknown(names) == names
    assert book.knows_some
    assert book.unknown(names, believing=True) == {"other"}
    assert cause(book, record) is None
    book._known_until = 0.0
    assert book.unknown(names) == names
    book.doubt(topic.name)
    assert book.unknown(names, believing=True) == names


def test_uncompressed_records_are_refused_from_the_byte_on_from_which_the_broker_refuses_them(topic: Topic) -> None:
    room = LIMIT - size_for_broker(topic.record("")) - 2  # lengths of two bytes, where those of nothing have one
    largest, larger = topic.record("x" * room), topic.record("x" * (room + 1))
    assert size_for_broker(largest) == LIMIT
    assert (topic.takes(largest), topic.takes(larger)) == (True, False)
    book = topic.book()
    assert (cause(book, largest), cause(book, larger)) == (None, Cause.TOO_LARGE)


def test_compressed_records_are_refused_only_if_no_codec_makes_them_fit(topic: Topic) -> None:
    book = topic.book(**LZ4)
    well, badly = topic.record("x" * 2 * LIMIT), topic.record(NOISE)
    assert (topic.takes(well, **LZ4), topic.takes(badly, **LZ4)) == (True, False)
    assert (cause(book, well), cause(book, badly)) == (None, Cause.TOO_LARGE)


def test_the_broker_is_believed_of_a_record_that_was_alone_until_the_topic_takes_larger_ones(topic: Topic) -> None:
    book, record = topic.book(**LZ4), topic.record("x" * 2 * LIMIT)
    assert cause(book, record) is None
    assert book.smallest_max_bytes == LIMIT
    book.found_too_large(topic.name, "k", record.value, batch_size=LIMIT + 1)
    assert cause(book, record) is None
    book.found_too_large(topic.name, "k", record.value, batch_size=LIMIT)
    assert cause(book, record) is Cause.TOO_LARGE
    assert cause(book, record, again=True) is Cause.TOO_LARGE
    assert cause(book, topic.record("x" * 2 * LIMIT, key="other")) is None
    topic.set_limit(LIMIT + 1)
    wait_until(lambda: cause(book, record, again=True) is None)


def test_the_clients_own_limit_holds_for_what_is_not_compressed_yet(topic: Topic) -> None:
    book = TopicCache(topic.kafka, producer={**LZ4, "message.max.bytes": 3000})
    assert cause(book, topic.record("x" * 4000)) is Cause.TOO_LARGE
    assert cause(book, topic.record("x" * 2000)) is None
    small, large = ((1, topic.name, "k", "x" * size, [], [], None, 1 + size, None) for size in (2000, 4000))
    assert book.passes([small])
    assert not book.passes([small, large])


def test_records_with_odd_headers_do_not_pass(topic: Topic) -> None:
    book = TopicCache(topic.kafka)
    assert cause(book, topic.record()) is None

    def row(names: Any, values: Any) -> Any:
        return 1, topic.name, "k", "x", names, values, None, 10, None

    good, none = row(["a"], ["b"]), row([], [])
    assert book.passes([good, row(["a"], ["b"]), none, good, row(["a", "a"], ["b", "c"])])
    odd = [(None, None), (["a"], ["b", "c"]), ([None], ["b"]), (["a"], [None]), ([b"a"], ["b"]), (["a"], [["b"]])]
    for bad in odd:
        assert not any(book.passes(rows) for rows in ([good, good, row(*bad)], [row(*bad), good], [none, row(*bad)]))


def test_another_try_finds_partitions_that_were_added(topic: Topic) -> None:
    book, record = TopicCache(topic.kafka), topic.record(partition=1)
    assert cause(book, record) is Cause.PARTITION
    topic.admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result()
    assert cause(book, record) is Cause.PARTITION
    wait_until(lambda: cause(book, record, again=True) is None)


def test_a_limit_is_forgotten_after_a_while(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    book, record = topic.book(), topic.record("x" * 2 * LIMIT)
    assert cause(book, record) is Cause.TOO_LARGE
    topic.set_limit(3 * LIMIT)
    assert cause(book, record) is Cause.TOO_LARGE
    later = itertools.count(time.monotonic() + 301, 301)
    monkeypatch.setattr(topic_cache, "time", SimpleNamespace(monotonic=lambda: next(later)))
    wait_until(lambda: cause(book, record) is None)
    assert book.smallest_max_bytes == 3 * LIMIT


def test_only_a_heartbeat_that_was_sent_since_tells_that_the_clock_is_right(topic: Topic) -> None:
    """The clock may be set after a heartbeat was sent, and before it is known that Kafka took it."""
    book, sent_before = topic.book(), time.monotonic()
    book.found_untimely(topic.name)
    book.heartbeat_was_taken(sent_before)
    assert cause(book, topic.record()) is None
    book.heartbeat_was_taken(time.monotonic())
    assert cause(book, topic.record()) is Cause.CLOCK


@pytest.mark.parametrize("name", ["ledger", "no name", "x" * 1_000_000])
def test_names_that_records_can_not_go_to(topic: Topic, name: str) -> None:
    refusals = topic.book().examine([topic.record()._replace(topic=name)], again=False)
    assert refusals[1].cause is Cause.TOPIC_NAME
    assert len(refusals[1].reason) < 200
