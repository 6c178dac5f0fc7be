"""The topics of an audit: which spans of them to read, what they may have lost, and the reading itself.

Only committed records are read. No consumer group is used, and nothing is committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any, cast

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.audit.fingerprints import Arrived, Header, content_of, lane_of, place_of
from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.errors import (
    REFUSALS,
    explained,
    is_about_unused_group,
    not_allowed,
    refused_settings,
    unreached,
)
from airflow_outbox.harvest.kafka.settings import of_consumer

logger = logging.getLogger(__name__)

_TIMEOUT = 10.0
_PATIENCE = 60.0
_BATCH = 5_000
_POLL = 0.1
_MOST_KBYTES_HELD = 16_384


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a partition, from `start` to before `stop`. Offsets from `late_from` on are late.

    `slot` is the partition's number among all partitions of the audit. It is part of a record's place.
    """

    slot: int
    topic: str
    partition: int
    start: int
    stop: int
    late_from: int

    def cut(self, length: int) -> list[Span]:
        """The span in pieces of at most `length` offsets."""
        starts = range(self.start, self.stop, length)
        return [replace(self, start=start, stop=min(start + length, self.stop)) for start in starts]


def ends(kafka: Mapping[str, Any], topics: Collection[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """By topic and partition: the first offset that is there, and the one after the last committed record.

    A topic that does not exist has no partitions. Raises KafkaError.
    """
    with _consumer(kafka) as consumer:
        return {
            (topic, partition): consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT)
            for topic in topics
            for partition in _partitions(consumer, topic)
        }


def spans(
    before: Mapping[tuple[str, int], tuple[int, int]], after: Mapping[tuple[str, int], tuple[int, int]]
) -> list[Span]:
    """The spans to read, from the ends before and after the rows' snapshot. Offsets between the two are late."""
    return [
        Span(slot, topic, partition, low, high, before.get((topic, partition), (0, 0))[1])
        for slot, ((topic, partition), (low, high)) in enumerate(sorted(after.items()))
    ]


def horizons(kafka: Mapping[str, Any], topics: Collection[str]) -> dict[str, float]:
    """The topics that have lost records. For each, a record stashed before the given time may be among the lost ones.

    That time is when the oldest record that such a partition still holds was published: retention removes the oldest
    first, and a record is stashed before it is published. For a compacted topic, or when nothing is left, nothing is
    known and the time is infinite. Raises KafkaError.
    """
    found = dict.fromkeys(_compacted(kafka, topics), inf)
    shortened = [
        Span(slot, topic, partition, low, high, high)
        for slot, ((topic, partition), (low, high)) in enumerate(sorted(ends(kafka, topics).items()))
        if low > 0
    ]
    for span in shortened:
        with _consumer(kafka) as consumer:
            first = next(_messages(consumer, [span], kafka), None)
        published_at = inf if first is None else _published_at(first)
        found[span.topic] = max(published_at, found.get(span.topic, 0.0))
    return found


def arrived(kafka: Mapping[str, Any], wanted: Sequence[Span], *, ignored_headers: Collection[str]) -> Iterator[Arrived]:
    """The committed records of the spans, in order within each partition. Raises KafkaError."""
    by_place = {(span.topic, span.partition): span for span in wanted}
    with _consumer(kafka) as consumer:
        for message in _messages(consumer, wanted, kafka):
            topic, partition, offset = cast("str", message.topic()), message.partition() or 0, message.offset() or 0
            span = by_place[topic, partition]
            headers = cast("list[Header]", message.headers() or [])
            if ignored_headers:
                headers = [header for header in headers if header[0] not in ignored_headers]
            yield Arrived(
                lane=lane_of(topic, message.key()),
                partition=partition,
                content=content_of(message.value(), headers),
                place=place_of(span.slot, offset),
                late=int(offset >= span.late_from),
            )


def _messages(consumer: Consumer, wanted: Sequence[Span], kafka: Mapping[str, Any]) -> Iterator[Message]:
    open_spans = {(span.topic, span.partition): span for span in wanted if span.start < span.stop}
    consumer.assign([TopicPartition(span.topic, span.partition, span.start) for span in open_spans.values()])
    deadline = time.monotonic() + _PATIENCE
    while open_spans:
        messages = consumer.consume(_BATCH, _POLL)
        if messages:
            deadline = time.monotonic() + _PATIENCE
        elif time.monotonic() > deadline:
            raise KafkaError(unreached(f"no data for {_PATIENCE:.0f} s", kafka))
        for message in messages:
            place = cast("str", message.topic()), message.partition() or 0
            span, error = open_spans.get(place), message.error()
            if error is not None and is_about_unused_group(error):
                continue
            if error is not None and error.code() != BrokerError._PARTITION_EOF:
                raise KafkaException(error)
            if span is None:
                continue
            if error is None and (message.offset() or 0) < span.stop:
                yield message
            # The end of the committed records also ends a span: Kafka's markers may lie behind the last record.
            if error is not None or (message.offset() or 0) >= span.stop - 1:
                del open_spans[place]
                consumer.pause([TopicPartition(*place)])


@contextmanager
def _consumer(kafka: Mapping[str, Any]) -> Iterator[Consumer]:
    settings = {
        **of_consumer(kafka, {}),
        "group.id": "airflow-outbox.audit",  # librdkafka wants one; unused without subscribe() and commit()
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",  # records that retention removes meanwhile are lost
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": _MOST_KBYTES_HELD,
    }
    try:
        consumer = Consumer(settings, logger=logger)
    except REFUSALS as error:
        raise refused_settings(error, kafka, remedy="Correct kafka") from error
    try:
        yield consumer
    except KafkaException as error:
        reason: BrokerError = error.args[0]
        raise KafkaError(explained(reason, kafka)) from error
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic]
    if found.error is None:
        return sorted(found.partitions)
    if found.error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaError(not_allowed("READ", "topic", topic))
    if found.error.code() in (BrokerError.UNKNOWN_TOPIC_OR_PART, BrokerError._UNKNOWN_TOPIC):
        return []
    raise KafkaException(found.error)


def _compacted(kafka: Mapping[str, Any], topics: Collection[str]) -> list[str]:
    """The topics that keep one record a key, as far as the brokers tell."""
    answers = Cluster(kafka).topic_settings(topics)
    return [
        topic
        for topic, answer in answers.items()
        if not isinstance(answer, BrokerError) and "compact" in str(answer["cleanup.policy"].value)
    ]


def _published_at(message: Message) -> float:
    return message.timestamp()[1] / 1000
