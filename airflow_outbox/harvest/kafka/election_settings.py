"""The settings of the election's clients: a member of the consumer group, and its heartbeats."""

from __future__ import annotations

from typing import Any

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.settings import CLIENT_SETTINGS, of_consumer, shared

# Nobody leads while a question for the one topic is lost: see CLIENT_SETTINGS.
_QUICK = {"topic.metadata.refresh.interval.ms": 1000}


def consumer_settings(config: HarvestConfig, group_id: str, *, place: str) -> dict[str, Any]:
    """Return a member's settings: defaults, overridden by the user's, then by those that the protocol needs.

    The group knows the member by `place`.
    """
    session_timeout_ms = int(config.limits.session_timeout * 1000)
    kafka = {**_QUICK, **config.kafka, "client.id": elections_client_id(config)}
    return {
        **of_consumer(kafka, config.kafka_consumer),
        "group.id": group_id,
        # A broker that was away for longer than the session timeout still counts its earlier members. A member
        # without its own name would have to join as another, and wait until the group has missed the first.
        "group.instance.id": place,
        "group.protocol": "classic",
        "partition.assignment.strategy": "range,roundrobin" if config.shards == 1 else "cooperative-sticky",
        "session.timeout.ms": session_timeout_ms,
        # The answer tells a member to rebalance, and so that a leader has left.
        "heartbeat.interval.ms": max(100, session_timeout_ms // 20),
        # A leader that stops polling must lose the role as soon as one whose process has stopped.
        "max.poll.interval.ms": session_timeout_ms,
        "auto.offset.reset": "latest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "allow.auto.create.topics": False,
    }


def heartbeat_settings(config: HarvestConfig, partitions: int) -> dict[str, Any]:
    """Return the settings of the producer of a member's heartbeats to this many partitions."""
    return {
        **shared({**_QUICK, **config.kafka}),
        "client.id": elections_client_id(config),
        "enable.idempotence": False,  # a producer of this kind may fail for good, and a heartbeat may be lost
        "message.timeout.ms": int(config.limits.heartbeat_timeout * 1000),
        "queue.buffering.max.messages": 100 + 10 * partitions,
    }


def elections_client_id(config: HarvestConfig) -> str:
    """Return the client id of the election's clients. The record producers have another, so that a quota on those holds
    no heartbeat back.
    """
    return f"{config.kafka.get('client.id', CLIENT_SETTINGS['client.id'])}.election"
