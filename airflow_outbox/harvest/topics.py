"""The Kafka names that belong to an outbox, and the topic of its election."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka import CLIENT_SETTINGS

logger = logging.getLogger(__name__)

_TIMEOUT = 10.0
_HEARTBEATS_KEPT_MS = 600_000


@dataclass(frozen=True, slots=True)
class KafkaNames:
    """What an outbox is called in Kafka: by its own id unless configured, so that outboxes share a cluster safely."""

    leader_topic: str
    leader_group_id: str

    @classmethod
    def of(cls, config: HarvestConfig, outbox_id: UUID) -> Self:
        own = f"airflow-outbox.{outbox_id}"
        return cls(config.leader_topic or f"{own}.leader", config.leader_group_id or own)


def admin_client(config: HarvestConfig) -> AdminClient:
    """A client for topics. Raises KafkaError for settings that Kafka's client refuses."""
    try:
        return AdminClient({**CLIENT_SETTINGS, **config.kafka}, logger=logger)
    except (KafkaException, ValueError, TypeError) as error:
        raise KafkaError(f"Kafka settings: {error}. Correct kafka") from error


def existing_topics(config: HarvestConfig, client: AdminClient | None = None) -> dict[str, Any]:
    """The cluster's topics by name, as confluent_kafka describes them. Raises KafkaError when it can't be reached."""
    try:
        topics: dict[str, Any] = (client or admin_client(config)).list_topics(timeout=_TIMEOUT).topics
    except KafkaException as error:
        servers = config.kafka["bootstrap.servers"]
        raise KafkaError(
            f"can't reach Kafka at {servers}: {error.args[0].str()}. Check bootstrap.servers and the credentials"
        ) from error
    return topics


def leader_partitions(config: HarvestConfig, names: KafkaNames) -> int:
    """How many partitions the topic of the election has. Raises KafkaError when it is not there."""
    topics = existing_topics(config)
    if names.leader_topic not in topics:
        raise KafkaError(f"there is no topic {names.leader_topic}. Run `airflow-outbox init`")
    return len(topics[names.leader_topic].partitions)


def make_leader_topic(config: HarvestConfig, names: KafkaNames) -> bool:
    """Make the topic of the election, with a partition a shard; say whether it had to be made.

    Its replication is the broker's default.

    Raises KafkaError.
    """
    client = admin_client(config)
    if names.leader_topic in existing_topics(config, client):
        return False
    topic = NewTopic(
        names.leader_topic,
        num_partitions=config.shards,
        replication_factor=-1,
        config={
            "retention.ms": str(_HEARTBEATS_KEPT_MS),
            "segment.ms": str(_HEARTBEATS_KEPT_MS),
            "cleanup.policy": "delete",
        },
    )
    try:
        client.create_topics([topic], operation_timeout=_TIMEOUT)[names.leader_topic].result()
    except KafkaException as error:
        if error.args[0].code() == BrokerError.TOPIC_ALREADY_EXISTS:
            return False
        raise KafkaError(f"can't make topic {names.leader_topic}: {error.args[0].str()}") from error
    return True
