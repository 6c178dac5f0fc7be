"""Reading parts of the outbox's own topics, between offsets that are known."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.consumer import new_consumer
from airflow_outbox.harvest.kafka.errors import explained, is_about_unused_group, not_allowed

_PATIENCE = 10.0
_POLL = 0.1
_TIME_TO_END = 0.5
_INTERVAL = 0.005
_FETCHED_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """How far a partition's log reaches.

    - `start`: its first offset
    - `stable`: how far committed records can be read
    - `end`: where it ended, with uncommitted records, when `stable` had not been asked for yet
    """

    start: int
    stable: int
    end: int

    @property
    def is_settled(self) -> bool:
        """Whether all that was written by then is committed, or aborted."""
        return self.stable >= self.end


class PageReader:
    """Reads pages of a cluster's topics, with a consumer that belongs to no group. One thread at a time uses it.
    `cluster` answers questions.
    """

    def __init__(self, config: HarvestConfig, *, cluster: Cluster) -> None:
        self._config = config
        self._cluster = cluster
        self._consumer: Consumer | None = None
        self._known: set[str] = set()
        self._complaint: str | None = None
        self.topic_ids: dict[str, str] = {}
        """The ids that topics had when their partitions were asked for last."""

    def partitions(self, topic: str, *, writes: bool = False) -> int:
        """Return how many partitions a topic has. Raises KafkaError, also if it may not be read, or written to if this
        user `writes`.
        """
        answer = self._cluster.topics([topic])[topic]
        if isinstance(answer, BrokerError):
            if answer.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaError(f"topic {topic} does not exist. Run `airflow-outbox init`")
            if answer.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
                raise KafkaError(not_allowed("READ", "topic", topic))
            raise KafkaError(explained(answer, self._config.kafka))
        allowed = answer.authorized_operations
        for operation in ("READ", "WRITE") if writes else ("READ",):
            if allowed is not None and AclOperation[operation] not in allowed:
                raise KafkaError(not_allowed(operation, "topic", topic))
        self.topic_ids[topic] = str(answer.topic_id)
        return len(answer.partitions)

    def reaches(self, topic: str, partitions: Iterable[int]) -> dict[int, PartitionOffsets]:
        """Return how far these partitions reach now. Transactions that are being committed have a moment to end. Raises
        KafkaError.
        """
        places = {partition: (topic, partition) for partition in partitions}
        starts = self._cluster.start_offsets(places.values())
        ends = self._cluster.end_offsets(places.values())
        deadline = time.monotonic() + _TIME_TO_END
        while True:
            stable = self._cluster.stable_offsets(places.values())
            if all(stable.get(place, 0) >= end for place, end in ends.items()) or time.monotonic() > deadline:
                break
            time.sleep(_INTERVAL)
        try:
            return {
                partition: PartitionOffsets(starts[place], stable[place], ends[place])
                for partition, place in places.items()
            }
        except KeyError as error:
            raise KafkaError(f"a partition of topic {topic} does not answer. Bring its brokers back") from error

    def read(self, topic: str, partition: int, start: int, upto: int) -> list[tuple[int, Message]]:
        """Return the committed records, with their offsets, between two offsets that can be read. Raises KafkaError."""
        if start >= upto:
            return []
        consumer = self._consumer = self._consumer or self._new_consumer()
        self._find(consumer, topic)
        consumer.assign([TopicPartition(topic, partition, start)])
        try:
            return list(self._consumed(consumer, topic, upto))
        finally:
            consumer.unassign()

    def close(self) -> None:
        """Give up the connections."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
            self._known.clear()

    def _find(self, consumer: Consumer, topic: str) -> None:
        """Have the consumer learn where a topic's leaders are. By itself, it asks about a second topic only at its next
        turn, a second later.
        """
        if topic in self._known:
            return
        try:
            consumer.list_topics(topic, timeout=_PATIENCE)
        except KafkaException as error:
            raise KafkaError(self._complaint or explained(error.args[0], self._config.kafka)) from error
        self._known.add(topic)

    def _new_consumer(self) -> Consumer:
        more = {
            "max.partition.fetch.bytes": _FETCHED_BYTES,
            "queued.min.messages": 1,  # no more than the page is wanted
            "fetch.queue.backoff.ms": 1,  # for the next page is wanted at once
        }
        return new_consumer(self._config, on_error=self._complain, more=more)

    def _consumed(self, consumer: Consumer, topic: str, upto: int) -> Iterator[tuple[int, Message]]:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if (message := consumer.poll(_POLL)) is None:
                continue
            error, offset = message.error(), cast("int", message.offset())
            if error is None:
                if offset < upto:
                    yield offset, message
                if offset >= upto - 1:
                    return
            elif error.code() == BrokerError._PARTITION_EOF:
                if offset >= upto:
                    return
            elif error.code() == BrokerError._AUTO_OFFSET_RESET:
                raise KafkaError(f"topic {topic} was shortened or recreated while it was read. Try again")
            elif error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
                raise KafkaError(not_allowed("READ", "topic", topic))
            elif not error.retriable() and not is_about_unused_group(error):
                raise KafkaError(explained(error, self._config.kafka))
        raise KafkaError(
            self._complaint or f"topic {topic} can't be read: no answer within {_PATIENCE:g} s. Bring its brokers back"
        )

    def _complain(self, error: BrokerError) -> None:
        self._complaint = explained(error, self._config.kafka)
