"""A topic, and what Kafka's answers about it say: why its records can't be published, or how many partitions it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from airflow_outbox.harvest.kafka.errors import not_allowed
from airflow_outbox.values.refusals import Cause, Refusal


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it was when it was looked up.

    `refusal` is why none of its records can be published. `max_bytes` is the largest record that it takes (None: not
    known, or never asked). `is_compacted` holds as far as is known. Made again, it has another `topic_id`.
    """

    refusal: Refusal | None
    partitions: int = 0
    max_bytes: int | None = None
    is_compacted: bool = False
    topic_id: str | None = None

    @property
    def is_away(self) -> bool:
        """Whether it has partitions without brokers."""
        return self.refusal is not None and self.refusal.cause is Cause.UNAVAILABLE

    @property
    def is_missing(self) -> bool:
        return self.refusal is not None and self.refusal.cause is Cause.UNKNOWN_TOPIC


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's largest record, whether it is compacted, and `min.insync.replicas`."""

    max_bytes: int
    is_compacted: bool
    min_in_sync: int


def _why_unavailable(name: str, partitions: Sequence[Any], settings: TopicSettings | None) -> str | None:
    """Return why Kafka takes nothing for a topic now, or not for all of its partitions; None when it does."""
    for partition in partitions:
        if partition.leader is None or partition.leader.id < 0:
            return f"partition {partition.id} of topic {name} has no leader"
        if settings is not None and len(partition.isr) < settings.min_in_sync:
            return (
                f"partition {partition.id} of topic {name} has {len(partition.isr)} replicas in sync, and "
                f"min.insync.replicas is {settings.min_in_sync}"
            )
    return None


def not_there(name: str) -> Refusal:
    """Return why a topic that does not exist takes no records."""
    return Refusal(Cause.UNKNOWN_TOPIC, f"topic {name} does not exist. Create it")


def is_another(answer: Any, topic_id: str | None) -> bool:
    """Whether Kafka's answer about a topic says that it is not there, or not the one with this id, if that is known."""
    if isinstance(answer, BrokerError):
        return bool(answer.code() == BrokerError.UNKNOWN_TOPIC_OR_PART)
    return topic_id is not None and str(answer.topic_id) != topic_id


def topic_of(name: str, answer: Any, settings: TopicSettings | None) -> Topic:
    """Return the topic that Kafka's answer, a description or an error, is about."""
    if not isinstance(answer, BrokerError):
        allowed = answer.authorized_operations
        if allowed is not None and AclOperation.WRITE not in allowed:
            return Topic(Refusal(Cause.NOT_AUTHORIZED, not_allowed("WRITE", "topic", name)))
        if (reason := _why_unavailable(name, answer.partitions, settings)) is not None:
            return Topic(Refusal(Cause.UNAVAILABLE, f"{reason}. Bring its brokers back"))
        if settings is None:
            return Topic(None, len(answer.partitions), topic_id=str(answer.topic_id))
        return Topic(
            None, len(answer.partitions), settings.max_bytes, settings.is_compacted, topic_id=str(answer.topic_id)
        )
    if answer.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
        return Topic(not_there(name))
    if answer.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
        return Topic(Refusal(Cause.NOT_AUTHORIZED, not_allowed("WRITE", "topic", name)))
    return Topic(Refusal(Cause.TOPIC_NAME, answer.str() or answer.name()))
