"""The Kafka names that belong to an outbox, and the topics that harvesting itself needs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from airflow_outbox.errors import KafkaError, naming_cluster
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
    extents_topic: str
    positions_groups: str
    """The beginning of the groups that keep copies of replicated positions; the name of the group follows."""

    @classmethod
    def of(cls, config: HarvestConfig, outbox_id: UUID) -> Self:
        own = f"airflow-outbox.{outbox_id}"
        return cls(
            leader_topic=config.leader_topic or f"{own}.leader",
            leader_group_id=config.leader_group_id or own,
            ledger_topic=config.ledger_topic or f"{own}.ledger",
            transactional_id=config.transactional_id or own,
            extents_topic=config.positions.extents_topic or f"{own}.extents",
            positions_groups=f"{own}.positions.",
        )

    def own_topics(self, config: HarvestConfig) -> list[str]:
        """Return the outbox's own topics that this configuration needs."""
        if config.delivery != "exactly_once":
            return [self.leader_topic]
        return [self.leader_topic, self.ledger_topic, *([self.extents_topic] if config.positions.enabled else [])]

    def group_of(self, shards: int, promotions: int = 0) -> str:
        """Return the election's group. Several shards have another one: a group's members have to agree on how it
        spreads partitions, and one shard stays with its leader when others join. After this many promotions of clusters
        it is another one, too: members that do not know of the last one elect among themselves.
        """
        group = self.leader_group_id if shards == 1 else f"{self.leader_group_id}.shards"
        return f"{group}.{promotions}" if promotions else group


def leader_partitions(config: HarvestConfig, names: KafkaNames) -> int:
    """Return how many partitions the election's topic has. Raises KafkaError when it is not there."""
    topic = _leader_topic(Cluster(config.kafka), names)
    if isinstance(topic, BrokerError):
        raise KafkaError(unusable(names.leader_topic, topic, config))
    return len(topic.partitions)


def _wait_until_known(cluster: Cluster, topic: str) -> None:
    """Wait until a broker knows a new topic. Brokers hear of it later than the answer comes, and say until then that it
    does not exist.
    """
    deadline = time.monotonic() + _MAKING_TIME
    with suppress(KafkaError):  # the topic is there, whatever becomes of the question
        while time.monotonic() < deadline:
            found = cluster.topics([topic])[topic]
            if not isinstance(found, BrokerError) or found.code() != BrokerError.UNKNOWN_TOPIC_OR_PART:
                return
            time.sleep(_MAKING_POLL)


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
    """Make the topics that harvesting itself needs, on each cluster: the election's, for any may become the primary,
    and a ledger. Return the names of those made, with the cluster where there are several.

    Raises KafkaError.
    """
    if config.delivery != "exactly_once":
        return [names.leader_topic] if make_leader_topic(config, names) else []
    made = []
    clusters = config.by_cluster()
    for cluster, own in clusters.items():
        with naming_cluster(cluster, of=len(clusters)):
            where = f" on cluster {cluster}" if config.clusters else ""
            if make_leader_topic(own, names):
                made.append(names.leader_topic + where)
            if make_ledger_topic(own, names):
                made.append(names.ledger_topic + where)
            if config.positions.enabled and make_extents_topic(own, names):
                made.append(names.extents_topic + where)
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


def make_extents_topic(config: HarvestConfig, names: KafkaNames) -> bool:
    """Make the extents' topic, with as many partitions as the ledger has, or add those that it lacks: the ledger may
    have got more since. Return whether that was needed. Raises KafkaError.

    It is kept as long as the brokers keep a topic by default, as the topics of the records probably are.
    """
    ledger = Cluster(config.kafka).topics([names.ledger_topic])[names.ledger_topic]
    shards = config.shards if isinstance(ledger, BrokerError) else max(config.shards, len(ledger.partitions))
    settings = {"cleanup.policy": "delete"}
    if make_topic(config, names.extents_topic, settings=settings, partitions=shards):
        return True
    return bool(_widen(config, [names.extents_topic], shards=shards))


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


def widen_topics(config: HarvestConfig, names: KafkaNames, *, shards: int) -> list[str]:
    """Give the outbox's own topics, on each cluster, a partition for each shard. Return those that had fewer. The
    extents' topic is among them if it is there, also while positions are off.

    Kafka's own topics stay as they are: their partitions are shared by several shards. Raises KafkaError.
    """
    clusters = config.by_cluster()
    widened = []
    for cluster, own in clusters.items():
        with naming_cluster(cluster, of=len(clusters)):
            topics = names.own_topics(own)
            if names.extents_topic not in topics and _is_there(own, names.extents_topic):
                topics.append(names.extents_topic)
            widened += _widen(own, topics, shards=shards)
    return widened


def _is_there(config: HarvestConfig, topic: str) -> bool:
    return not isinstance(Cluster(config.kafka).topics([topic])[topic], BrokerError)


def _widen(config: HarvestConfig, topics: Iterable[str], *, shards: int) -> list[str]:
    cluster = Cluster(config.kafka)
    own = [name for name in topics if not is_kafkas_own(name)]
    widened = []
    for name, topic in cluster.topics(own).items():
        if isinstance(topic, BrokerError):
            raise KafkaError(unusable(name, topic, config))
        if len(topic.partitions) < shards:
            if (error := cluster.add_partitions(name, shards)) is not None:
                raise KafkaError(f"can't add partitions to topic {name}: {error.str()}. Correct that, and try again")
            widened.append(name)
    return widened


def make_topic(config: HarvestConfig, name: str, *, settings: dict[str, str], partitions: int | None = None) -> bool:
    """Make a topic with one partition per shard, or this many, unless it is there. Return whether it was made. It
    waits for a while until a broker knows the topic.

    Its replication is the broker's default. Raises KafkaError.
    """
    if _is_there(config, name):
        return False
    topic = NewTopic(name, num_partitions=partitions or config.shards, replication_factor=-1, config=settings)
    cluster = Cluster(config.kafka)
    error = cluster.make_topic(topic)
    if error is None:
        _wait_until_known(cluster, name)
        return True
    if error.code() == BrokerError.TOPIC_ALREADY_EXISTS:
        return False
    if error.code() in (BrokerError.TOPIC_AUTHORIZATION_FAILED, BrokerError.CLUSTER_AUTHORIZATION_FAILED):
        raise KafkaError(not_allowed("CREATE", "topic", name))
    raise KafkaError(f"can't create topic {name}: {error.str()}. Correct that, and run `airflow-outbox init` again")
