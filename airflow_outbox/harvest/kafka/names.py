"""The Kafka names that belong to an outbox, and the topics that harvesting itself needs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.errors import explained, not_allowed
from airflow_outbox.postgres.names import is_kafkas_own

_HEARTBEATS_KEPT_MS = 600_000
_LEDGER_SEGMENT_BYTES = 16 * 1024 * 1024
_TOMBSTONES_KEPT_MS = 3_600_000
_MAKING_TIME = 10.0
_MAKING_POLL = 0.2


@dataclass(frozen=True, slots=True)
class KafkaNames:
    """An outbox's names in Kafka. Unless configured they hold its id, so that outboxes share a cluster safely."""

    leader_topic: str
    leader_group_id: str
    ledger_topic: str
    transactional_id: str

    @classmethod
    def of(cls, config: HarvestConfig, outbox_id: UUID) -> Self:
        own = f"airflow-outbox.{outbox_id}"
        return cls(
            leader_topic=config.leader_topic or f"{own}.leader",
            leader_group_id=config.leader_group_id or own,
            ledger_topic=config.ledger_topic or f"{own}.ledger",
            transactional_id=config.transactional_id or own,
        )


def leader_partitions(config: HarvestConfig, names: KafkaNames) -> int:
    """Return how many partitions the election's topic has. Raises KafkaError when it is not there."""
    topic = _leader_topic(Cluster(config.kafka), names)
    if isinstance(topic, BrokerError):
        raise KafkaError(unusable(names.leader_topic, topic, config))
    return len(topic.partitions)


def _leader_topic(cluster: Cluster, names: KafkaNames) -> Any:
    """Return the election's topic, or the broker's error."""
    deadline = time.monotonic() + _MAKING_TIME
    while True:
        topic = cluster.topics([names.leader_topic])[names.leader_topic]
        if not isinstance(topic, BrokerError) or topic.code() != BrokerError.UNKNOWN_TOPIC_OR_PART:
            return topic
        if not is_kafkas_own(names.leader_topic) or time.monotonic() > deadline:
            return topic
        cluster.group(names.leader_group_id)  # Kafka makes its own topics when a group is first asked for
        time.sleep(_MAKING_POLL)


def unusable(leader_topic: str, error: BrokerError, config: HarvestConfig) -> str:
    """Return why the election's topic can't be used, and what to do."""
    if error.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
        return f"topic {leader_topic} does not exist. Run `airflow-outbox init`"
    if error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
        return not_allowed("READ", "topic", leader_topic)
    return explained(error, config.kafka)


def make_internal_topics(config: HarvestConfig, names: KafkaNames) -> list[str]:
    """Make the topics that harvesting itself needs. Return the names of those made.

    Raises KafkaError.
    """
    made = [names.leader_topic] if make_leader_topic(config, names) else []
    if config.delivery == "exactly_once" and make_ledger_topic(config, names):
        made.append(names.ledger_topic)
    return made


def make_ledger_topic(config: HarvestConfig, names: KafkaNames) -> bool:
    """Make the ledger's topic, with one partition per shard. Return whether it was made. Raises KafkaError."""
    return make_topic(
        config,
        names.ledger_topic,
        settings={
            "cleanup.policy": "compact",
            "segment.bytes": str(_LEDGER_SEGMENT_BYTES),
            "delete.retention.ms": str(_TOMBSTONES_KEPT_MS),
        },
    )


def make_leader_topic(config: HarvestConfig, names: KafkaNames) -> bool:
    """Make the election's topic, with one partition per shard. Return whether it was made. Raises KafkaError."""
    if is_kafkas_own(names.leader_topic):
        return False
    kept = str(_HEARTBEATS_KEPT_MS)
    return make_topic(
        config,
        names.leader_topic,
        settings={"retention.ms": kept, "segment.ms": kept, "cleanup.policy": "delete"},
    )


def make_topic(config: HarvestConfig, name: str, *, settings: dict[str, str]) -> bool:
    """Make a topic with one partition per shard, unless it is there. Return whether it was made.

    Its replication is the broker's default. Raises KafkaError.
    """
    cluster = Cluster(config.kafka)
    if not isinstance(cluster.topics([name])[name], BrokerError):
        return False
    error = cluster.make_topic(NewTopic(name, num_partitions=config.shards, replication_factor=-1, config=settings))
    if error is None:
        return True
    if error.code() == BrokerError.TOPIC_ALREADY_EXISTS:
        return False
    if error.code() in (BrokerError.TOPIC_AUTHORIZATION_FAILED, BrokerError.CLUSTER_AUTHORIZATION_FAILED):
        raise KafkaError(not_allowed("CREATE", "topic", name))
    raise KafkaError(f"can't create topic {name}: {error.str()}")
