"""Load for an outbox: records at a rate, in transactions, as an application would stash them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import ConfigurationError, KafkaError, naming_cluster
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.postgres.connection import connect, located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.stash import stash
from airflow_outbox.stash.encoding import topic_problem
from airflow_outbox.values.records import OutboxRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The load to generate. `rate` is in records/s (None: as fast as possible); `size` is a value's in characters."""

    topic: str
    records: int
    rate: float | None
    keys: int
    size: int
    transaction: int
    rollbacks: float


def require_topic(config: HarvestConfig, topic: str) -> list[str]:
    """Raise ConfigurationError for a topic that can't be, or that some cluster lacks. Return notes about clusters that
    do not answer.
    """
    if (problem := topic_problem(topic)) is not None:
        raise ConfigurationError(f"the topic: {problem}")
    notes = []
    for cluster, own in config.by_cluster().items():
        try:
            with naming_cluster(cluster, of=len(config.by_cluster())):
                found = Cluster(own.kafka).topics([topic])[topic]
        except KafkaError as error:
            notes.append(f"nobody knows whether topic {topic} is there: {error}")
            continue
        if isinstance(found, BrokerError) and found.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
            where = f" on cluster {cluster}" if config.clusters else ""
            raise ConfigurationError(
                f"topic {topic} does not exist{where}: its records would be parked. Create it, or name another topic"
            )
    return notes


def pump(config: HarvestConfig, load: LoadPlan, *, report: Callable[[int], None]) -> int:
    """Stash the load; return how many records were committed. `report` gets that number after every transaction.

    A value begins with the record's number, counted from 0, and a space. `rollbacks` is the share of transactions that
    are rolled back; their numbers never arrive. Raises InvalidRecordError, PostgresError.
    """
    drawn = random.Random(0)
    begun, sent, committed = time.monotonic(), 0, 0
    with closing(connect(config.data_source, purpose="pump")) as connection, translated(config.name):
        outbox = located(connection, config.name).text()
        while sent < load.records:
            if load.rate is not None:
                time.sleep(max(0.0, begun + sent / load.rate - time.monotonic()))
            batch = range(sent, min(sent + load.transaction, load.records))
            rolled_back = drawn.random() < load.rollbacks
            with connection.transaction(force_rollback=rolled_back):
                stash(connection, [_record(number, load) for number in batch], outbox=outbox)
            sent = batch.stop
            if not rolled_back:
                committed += len(batch)
                report(committed)
    return committed


def _record(number: int, load: LoadPlan) -> OutboxRecord:
    return OutboxRecord(load.topic, f"key-{number % load.keys}", f"{number} ".ljust(load.size, "x"), {"source": "pump"})
