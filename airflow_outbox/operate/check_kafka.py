"""Find what is missing or dangerous about an outbox in Kafka, on each of its clusters."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import Producer

from airflow_outbox.errors import ConfigurationError, KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.consumer import new_consumer
from airflow_outbox.harvest.kafka.distinct_clusters import DistinctClusters
from airflow_outbox.harvest.kafka.errors import REFUSALS, not_allowed, refused_settings
from airflow_outbox.harvest.kafka.names import KafkaNames, unusable
from airflow_outbox.harvest.kafka.producer import producer_settings
from airflow_outbox.harvest.kafka.record_size import client_limit
from airflow_outbox.harvest.kafka.settings import remarks
from airflow_outbox.harvest.logs import divided_otherwise
from airflow_outbox.harvest.protocol.ledger import LARGEST_ENTRY
from airflow_outbox.operate.acls import needed_acls
from airflow_outbox.operate.brokers import examine_brokers
from airflow_outbox.operate.check_retention import examine_retention
from airflow_outbox.operate.finding import Finding, Severity
from airflow_outbox.postgres.names import is_kafkas_own
from airflow_outbox.values.fence import PRIMARY
from airflow_outbox.values.layout import Layout

logger = logging.getLogger(__name__)

_LARGEST = "max.message.bytes"


def examine_kafka(
    config: HarvestConfig,
    names: KafkaNames | None,
    pending: set[str],
    layouts: Sequence[Layout],
    primary: str = PRIMARY,
    promotions: Sequence[int] = (0,),
    published: Collection[str] = (),
    *,
    elects: bool = True,
) -> Iterator[Finding]:
    """Examine each cluster as the configured user sees it. Without `names`, there is no outbox yet.

    `pending` are the topics that records wait for, `published` those that records went to; `promotions` how many there
    were, and may be. An outbox of a list `elects` nobody. A cluster that can't be reached is a finding.
    """
    yield from (Finding(Severity.NOTE, text) for text in remarks(config))
    distinct, divided = DistinctClusters(), {}
    for name, own in config.by_cluster().items():
        about = f"cluster {name}: " if config.clusters else ""
        try:
            cluster = Cluster(own.kafka)
            if config.clusters:
                distinct.require(name, cluster)
            if names is None:
                cluster.reach()
                _require_known_settings(own)
                continue
            _require_known_settings(own)
            needed = {*names.own_topics(own)} - (set() if elects else {names.leader_topic})
            topics = cluster.topics(needed | pending)
            findings = [*_examine(own, names, cluster, topics, pending, layouts, promotions if elects else ())]
            findings += examine_brokers(own, elects=elects)
            findings += examine_retention(cluster, names, pending.union(published)) if config.positions.enabled else []
        except (KafkaError, ConfigurationError) as error:
            yield Finding(Severity.MISSING, f"{about}{error}")
            continue
        yield from (Finding(finding.severity, f"{about}{finding.text}") for finding in findings)
        divided[name] = {
            topic: len(answer.partitions)
            for topic, answer in topics.items()
            if topic in pending and not isinstance(answer, BrokerError)
        }
    yield from _examine_division(divided, primary)


def _require_known_settings(config: HarvestConfig) -> None:
    """Raise KafkaError for settings of producers or consumers that the client refuses."""
    settings = producer_settings(config)
    try:
        Producer(settings, logger=logger)
    except REFUSALS as error:
        raise refused_settings(error, settings, remedy="Correct kafka_producer or kafka") from error
    new_consumer(config, on_error=lambda _: None).close()


def _examine_division(divided: Mapping[str, Mapping[str, int]], primary: str) -> Iterator[Finding]:
    """Each topic needs as many partitions on each cluster."""
    on_primary = divided.get(primary, {})
    for cluster, topics in divided.items():
        for topic in sorted(topics.keys() & on_primary.keys()):
            if topics[topic] != on_primary[topic]:
                reason = divided_otherwise(topic, cluster, on_primary[topic], topics[topic])
                yield Finding(Severity.MISSING, reason)


def _examine(
    config: HarvestConfig,
    names: KafkaNames,
    cluster: Cluster,
    topics: Mapping[str, Any],
    pending: set[str],
    layouts: Sequence[Layout],
    promotions: Sequence[int],
) -> Iterator[Finding]:
    """Examine one cluster, given its answers about the topics. Without `promotions` there is no election."""
    own = names.own_topics(config)
    answers = {("topic", topic): answer for topic, answer in topics.items()}
    for group in {names.group_of(layout.shards, number) for layout in layouts for number in promotions}:
        answers["group", group] = cluster.group(group)
    elects = len(promotions) > 0
    for acl in needed_acls(config, names, pending, layouts=layouts, promotions=promotions, elects=elects):
        if acl.resource == "transactional-id":
            continue  # any question to Kafka about it would fence a leader
        if acl.purpose not in ("harvest", "positions") or acl.name.endswith("*"):  # nobody can ask about many groups
            continue
        if (acl.resource, acl.name) not in answers:
            answers[acl.resource, acl.name] = cluster.group(acl.name)
        if acl.missing(answers[acl.resource, acl.name]):
            why = not_allowed(acl.operation, acl.resource, acl.name)
            yield Finding(Severity.MISSING, why if acl.purpose == "harvest" else f"positions: {why}")
    for topic, answer in sorted(topics.items()):
        if isinstance(answer, BrokerError):
            yield from _examine_missing_topic(config, topic, answer, awaited=topic in pending)
        elif min((len(partition.replicas) for partition in answer.partitions), default=0) < 2:
            yield Finding(
                Severity.DANGEROUS, f"topic {topic} has one replica: losing that broker loses its records. Give it more"
            )
        if topic in own and not isinstance(answer, BrokerError):
            yield from _examine_partitions(topic, len(answer.partitions), layouts)
    there = sorted(topic for topic, answer in topics.items() if not isinstance(answer, BrokerError))
    for topic, settings in cluster.topic_settings(there).items():
        yield from _examine_topic_settings(topic, settings, is_ledger=topic == names.ledger_topic)
        if topic in pending and not isinstance(settings, BrokerError):
            yield from _examine_size(config, topic, int(settings[_LARGEST].value))


def _examine_partitions(topic: str, partitions: int, layouts: Sequence[Layout]) -> Iterator[Finding]:
    """Each shard takes a partition of the outbox's own topics. Shards share those of Kafka's own."""
    most = max(layout.shards for layout in layouts)
    if partitions < most and not is_kafkas_own(topic):
        yield Finding(
            Severity.MISSING,
            f"topic {topic} has {partitions} partitions, but the outbox has {most} shards, of which each takes one. "
            f"`airflow-outbox reshard {most}` adds them",
        )


def _examine_missing_topic(
    config: HarvestConfig, topic: str, error: BrokerError, *, awaited: bool
) -> Iterator[Finding]:
    if error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
        return  # the list of permissions has said it
    if awaited and error.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
        yield Finding(Severity.MISSING, f"records wait for topic {topic}, which does not exist. Create it")
    else:
        yield Finding(Severity.MISSING, unusable(topic, error, config))


def _examine_size(config: HarvestConfig, topic: str, largest: int) -> Iterator[Finding]:
    """A record that the producer takes, and the topic does not, is parked."""
    most = client_limit(producer_settings(config))
    if largest < most:
        yield Finding(
            Severity.NOTE,
            f"topic {topic} has {_LARGEST}={largest}: of records with up to {most} bytes, which the producer takes, "
            "larger ones are parked. Raise it where such records come",
        )


def _examine_topic_settings(topic: str, settings: Any, *, is_ledger: bool) -> Iterator[Finding]:
    if isinstance(settings, BrokerError):
        reason = settings.str()
        if settings.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            reason = not_allowed("DESCRIBE_CONFIGS", "topic", topic)
        yield Finding(Severity.DANGEROUS, f"the safety of topic {topic} is not known: {reason}")
        return
    values = {name: entry.value for name, entry in settings.items()}
    if values.get("min.insync.replicas") == "1":
        yield Finding(
            Severity.DANGEROUS,
            f"topic {topic} has min.insync.replicas=1: losing one broker can lose acknowledged records. Set it to 2",
        )
    if is_ledger and values.get("cleanup.policy") != "compact":
        yield Finding(
            Severity.DANGEROUS,
            f"topic {topic}, the ledger, has cleanup.policy={values.get('cleanup.policy')}: Kafka deletes after a "
            "while what tells the next leader which records are published. Set it to compact",
        )
    if is_ledger and int(values.get(_LARGEST) or LARGEST_ENTRY) < LARGEST_ENTRY:
        yield Finding(
            Severity.DANGEROUS,
            f"topic {topic}, the ledger, has {_LARGEST}={values[_LARGEST]}: Kafka would refuse the entry of a large "
            f"batch, and nothing would be published any more. Set it to {LARGEST_ENTRY} or more",
        )
    if values.get("unclean.leader.election.enable") == "true":
        yield Finding(
            Severity.DANGEROUS,
            f"topic {topic} allows unclean leader election: acknowledged records can be lost. "
            "Set unclean.leader.election.enable to false",
        )
