"""The names in Kafka of a list of outboxes: one election, by a group and a topic of its own."""

from __future__ import annotations

from contextlib import closing

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_leader_topic
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.resting import database_of
from airflow_outbox.values.outbox_list import OutboxPattern, list_id

ROLES = 8
"""Parts of a list. Each has one leader, so that several processes can share it."""


def names_of(config: HarvestConfig) -> KafkaNames:
    """Return the names of the list's election: those of an outbox, with an id of its own. Raises PostgresError."""
    with closing(connect(config.data_source, purpose="start")) as connection:
        system_identifier, oid = database_of(connection)
    return KafkaNames.of(config, list_id(config.outboxes, system_identifier=system_identifier, database_oid=oid))


def make_list_topics(config: HarvestConfig) -> list[str]:
    """Make the topic of the list's election. Return it, if it was made. Raises PostgresError, KafkaError."""
    names = names_of(config)
    made = make_leader_topic(config.model_copy(update={"shards": ROLES}), names)
    return [names.leader_topic] if made else []


def named_outboxes(config: HarvestConfig) -> list[str]:
    """Return the entries of the list that are names, and not patterns."""
    return [entry for entry in config.outboxes if OutboxPattern.parse(entry).is_a_name]
