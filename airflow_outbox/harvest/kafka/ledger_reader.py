"""Reading the ledger to its end."""

from __future__ import annotations

import time
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from airflow_outbox.errors import HistoryError, KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.consumer import new_consumer
from airflow_outbox.harvest.kafka.errors import explained, is_about_unused_group, not_allowed
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.protocol.ledger import Ledger, Unread

_POLL = 0.5


class LedgerReader:
    """Reads a shard's partition of the ledger with its own consumer, which belongs to no group."""

    def __init__(self, config: HarvestConfig, names: KafkaNames, shard: int, *, cluster: Cluster | None = None) -> None:
        """`cluster`, if given, answers questions about the topic."""
        self._cluster = cluster
        self._config = config
        self._topic = names.ledger_topic
        self._partition = shard
        self._patience = config.limits.transaction_timeout
        self._complaint: str | None = None

    def read(self, start: int) -> Ledger:
        """Return the committed records from an offset to the ledger's present end, where uncommitted records count too.

        Waits for transactions that are open there. Raises HistoryError when the ledger does not reach so far,
        KafkaError also when there is none.
        """
        topic_id, end = self._present()
        if start > end:
            raise HistoryError(f"the ledger ends at offset {end}, but offset {start} was in it")
        records = [] if start == end else self._records(start, end)
        return Ledger.read(topic_id=topic_id, end=end, records=records)

    def glimpse(self, start: int) -> Ledger:
        """Return the committed records from an offset to the first open transaction; none if that is before it.

        Raises HistoryError for records that no release has written, KafkaError also when there is no ledger.
        """
        topic_id, end = self._present(stable=True)
        return Ledger.read(topic_id=topic_id, end=end, records=self._records(start, end) if start < end else [])

    def read_all(self, unread: list[Unread], *, stable: bool = False) -> Ledger:
        """Return all committed records. `unread` takes those that no release has written. If `stable`, this waits for
        no open transaction and leaves out what comes after it. Raises KafkaError.
        """
        topic_id, end = self._present(stable=stable)
        return Ledger.read(
            topic_id=topic_id, end=end, records=self._records(OFFSET_BEGINNING, end) if end else [], unread=unread
        )

    def _present(self, *, stable: bool = False) -> tuple[str, int]:
        """Return the topic's id, and where it ends now."""
        cluster = self._cluster or Cluster(self._config.kafka)
        return self._topic_id(cluster), cluster.end_offset(self._topic, self._partition, stable=stable)

    def _topic_id(self, cluster: Cluster) -> str:
        topic = cluster.topics([self._topic])[self._topic]
        if not isinstance(topic, BrokerError):
            if len(topic.partitions) <= self._partition:
                raise KafkaError(
                    f"the ledger {self._topic} has no partition for shard {self._partition}. Add partitions"
                )
            allowed = topic.authorized_operations
            if allowed is not None and AclOperation.READ not in allowed:  # an empty ledger would not show it
                raise KafkaError(not_allowed("READ", "topic", self._topic))
            return str(topic.topic_id)
        if topic.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaError(
                f"there is no ledger: topic {self._topic} is missing. Run `airflow-outbox init`; if the topic existed "
                "before, run `airflow-outbox adopt`, too"
            )
        if topic.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            raise KafkaError(not_allowed("READ", "topic", self._topic))
        raise KafkaError(explained(topic, self._config.kafka))

    def _records(self, start: int, end: int) -> list[tuple[int, str, str | None]]:
        consumer = new_consumer(self._config, on_error=self._complain)
        try:
            return self._consumed(consumer, start, end)
        finally:
            consumer.close()

    def _consumed(self, consumer: Consumer, start: int, end: int) -> list[tuple[int, str, str | None]]:
        records: list[tuple[int, str, str | None]] = []
        consumer.assign([TopicPartition(self._topic, self._partition, start)])
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            message = consumer.poll(_POLL)
            if message is None:
                continue
            error = message.error()
            offset = cast("int", message.offset())
            if error is None:
                key, value = message.key() or b"", message.value()
                records.append((offset, _text(key), None if value is None else _text(value)))
            elif error.code() == BrokerError._PARTITION_EOF:
                if offset >= end:
                    return records
            elif error.code() == BrokerError._AUTO_OFFSET_RESET:
                raise HistoryError(
                    f"the ledger no longer holds offset {start}: its records were deleted by a request, or because its "
                    "cleanup.policy is not compact"
                )
            elif error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
                raise KafkaError(not_allowed("READ", "topic", self._topic))
            elif not error.retriable() and not is_about_unused_group(error):
                raise KafkaError(explained(error, self._config.kafka))
        raise KafkaError(
            self._complaint
            or "the ledger can't be read to its end: a transaction stays open in it. Try again after "
            "limits.transaction_timeout, when Kafka has ended it"
        )

    def _complain(self, error: BrokerError) -> None:
        self._complaint = explained(error, self._config.kafka)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
