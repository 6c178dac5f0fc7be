"""A writer of one outbox sends records to the topics in which another outbox keeps its own state: that one goes on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from hostile.innocents import Innocents, names_of
from support.harvesting import CHILD, SHORT_SESSION, Outbox, Process, make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

INTO = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'hostile', 'v')"


@pytest.fixture
def robber(postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str) -> Iterator[Outbox]:
    """An outbox in another database, published by another process to the same Kafka."""
    name = f"robber_{uuid.uuid4().hex[:12]}"
    yield make_outbox(postgres.create_database(name), bootstrap=kafka.bootstrap, topic=topic_prefix + "robber")
    postgres.drop_database(name)


@pytest.mark.parametrize("mode", ["single"])
def test_the_ledger_and_the_election_of_another_outbox_take_no_records(innocents: Innocents, robber: Outbox) -> None:
    own = names_of(innocents.outbox)
    with innocents.harvested(limits=SHORT_SESSION):
        with psycopg.connect(robber.database, autocommit=True) as connection:
            for topic in (own.leader_topic, own.ledger_topic):
                connection.execute(INTO, (topic,))
        harvester = Process(CHILD, first_line={"config": robber.settings, "until": "drained"})
        try:
            harvester.ends()
        finally:
            harvester.end()
    with innocents.harvested(limits=SHORT_SESSION) as process:  # its leader reads the ledger
        innocents.around("SELECT 1")
        innocents.stand(named=None)
        assert process.failures == []
    parked = robber.query("SELECT kafka_topic, cause FROM outbox_parked ORDER BY kafka_topic")
    assert parked == [(own.leader_topic, "topic_name"), (own.ledger_topic, "topic_name")]
