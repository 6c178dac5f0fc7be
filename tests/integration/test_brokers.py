"""The findings of `check` about transactions, for brokers and client; with a broker that is configured badly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import AdminClient, ConfigEntry, NewTopic  # type: ignore[attr-defined]
from support.harvesting import partitions_of, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.election import NeliElection
from airflow_outbox.harvest.kafka.names import KafkaNames, make_leader_topic
from airflow_outbox.harvest.protocol.election import Lead
from airflow_outbox.operate.brokers import (
    ADD_PARTITIONS,
    examine_brokers,
    examine_client,
    examine_settings,
    examine_version,
)
from airflow_outbox.operate.check import examine
from airflow_outbox.operate.finding import Finding, Severity

BAD = {
    "transaction.max.timeout.ms": "30000",
    "transaction.partition.verification.enable": "false",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.min.session.timeout.ms": "7000",
}
GOOD = {
    "transaction.max.timeout.ms": "60000",
    "transaction.partition.verification.enable": "true",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
}


@pytest.fixture(scope="module", params=[BAD, GOOD], ids=["bad", "good"])
def broker(
    server_folder: Path, kafka_classpath: str, request: pytest.FixtureRequest
) -> Iterator[tuple[EmbeddedKafka, bool]]:
    """A broker with these settings, and whether they are good; its one node can't keep them, but it tells them."""
    folder = server_folder / f"kafka-{len(str(request.param))}"
    with EmbeddedKafka(folder, classpath=kafka_classpath, properties=request.param) as broker:
        yield broker, request.param is GOOD


def configured(bootstrap: str, **settings: Any) -> HarvestConfig:
    own = {"data_source": "host=127.0.0.1 port=1 connect_timeout=1", "kafka": {"bootstrap.servers": bootstrap}}
    return HarvestConfig.validated({**own, **settings}, source="test")


def test_a_brokers_settings_are_looked_at(broker: tuple[EmbeddedKafka, bool]) -> None:
    server, is_good = broker
    findings = list(examine_brokers(configured(server.bootstrap)))
    if is_good:
        assert findings == []
        return
    assert [finding.severity for finding in findings] == [*[Severity.MISSING] * 2, *[Severity.DANGEROUS] * 3]
    assert all(
        any(f"broker 1 has {name}={value}" in finding.text for finding in findings) for name, value in BAD.items()
    )
    assert "limits.transaction_timeout, 60 s. Set limits.transaction_timeout to 30 or less" in findings[0].text
    assert "limits.session_timeout, 6 s: nobody would lead. Set limits.session_timeout to 7 or more" in findings[1].text


async def test_the_remedy_for_a_session_timeout_lets_a_member_lead(broker: tuple[EmbeddedKafka, bool]) -> None:
    server, _ = broker
    config = configured(server.bootstrap, limits={"session_timeout": 7.0}, leader_topic="one", leader_group_id="one")
    about_it = [finding for finding in examine_brokers(config) if "session" in finding.text]
    assert about_it == []
    names = KafkaNames.of(config, uuid4())
    make_leader_topic(config, names)
    joined = NeliElection(config, topic="one", partitions=1, group_id="one", on_error=pytest.fail)
    assert await anext(joined.changes()) == (0, Lead())
    joined.released(0)
    await joined.close()


def test_what_is_not_needed_is_not_looked_at(broker: tuple[EmbeddedKafka, bool]) -> None:
    server, is_good = broker
    at_least_once = configured(server.bootstrap, delivery="at_least_once")
    assert len(list(examine_brokers(at_least_once))) == (0 if is_good else 1)
    assert list(examine_brokers(at_least_once, elects=False)) == []


@pytest.mark.parametrize(("bound", "value"), [("min", "6001"), ("max", "5999")])
def test_session_timeouts_that_a_broker_refuses(bound: str, value: str) -> None:
    name = f"group.{bound}.session.timeout.ms"
    settings = {each: ConfigEntry(each, text) for each, text in {**GOOD, name: value}.items()}
    [finding] = examine_settings(configured("127.0.0.1:1"), 7, settings)
    assert finding.severity is Severity.MISSING
    assert f"broker 7 has {name}={value}" in finding.text


def test_the_topic_of_the_transactions_state_may_be_older_than_the_settings(
    broker: tuple[EmbeddedKafka, bool],
) -> None:
    server, is_good = broker
    topic = NewTopic("__transaction_state", 4, 1, config={"min.insync.replicas": "1"})
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([topic])[topic.topic].result()
    wait_until(lambda: partitions_of(admin, topic.topic) == 4)
    texts = [finding.text for finding in examine_brokers(configured(server.bootstrap))]
    about_it = [text for text in texts if text.startswith("topic __transaction_state has")]
    if is_good:
        assert "one replica, and was made before transaction.state.log.replication.factor was raised" in about_it[0]
        assert "min.insync.replicas=1, and was made before transaction.state.log.min.isr was raised" in about_it[1]
    assert len(about_it) == (2 if is_good else 0), "the settings have said it"


def test_the_client_tells_which_requests_the_brokers_know(broker: tuple[EmbeddedKafka, bool]) -> None:
    cluster = Cluster({"bootstrap.servers": broker[0].bootstrap}, notes_versions=True)
    cluster.broker_settings()
    assert cluster.newest_version(ADD_PARTITIONS) == 5  # Kafka 4
    assert cluster.newest_version("NoSuchRequest") is None


@pytest.mark.parametrize(("newest", "severity"), [(3, Severity.DANGEROUS), (None, Severity.UNCHECKED)])
def test_old_and_unknown_brokers_are_named(newest: int | None, severity: Severity) -> None:
    [finding] = examine_version(newest)
    assert (finding.severity, "3.6" in finding.text) == (severity, True)
    assert list(examine_version(4)) == []


def test_settings_that_are_not_shown_are_not_checked() -> None:
    refused = BrokerError(BrokerError.CLUSTER_AUTHORIZATION_FAILED)
    [finding] = examine_settings(configured("127.0.0.1:1"), 7, refused)
    assert finding.severity is Severity.UNCHECKED
    assert all(name in finding.text for name in BAD)
    assert "Kafka does not allow DESCRIBE_CONFIGS on the cluster" in finding.text
    unknown = list(examine_settings(configured("127.0.0.1:1"), 7, {}))
    assert [finding.severity for finding in unknown] == [Severity.UNCHECKED] * 6


@pytest.mark.parametrize(
    ("min_isr", "says"),
    [
        ("1", "min.isr=1: losing one broker can lose acknowledged state of transactions. Set it to 2, and give"),
        ("2", "min.isr=2: nothing can be published while one of the two brokers is away"),
    ],
)
def test_two_replicas_of_the_transactions_state_are_too_few(min_isr: str, says: str) -> None:
    values = {**GOOD, "transaction.state.log.replication.factor": "2", "transaction.state.log.min.isr": min_isr}
    settings = {name: ConfigEntry(name, value) for name, value in values.items()}
    [finding] = examine_settings(configured("127.0.0.1:1"), 7, settings)
    assert finding.severity is Severity.DANGEROUS
    assert says in finding.text
    assert "ive __transaction_state three replicas" in finding.text


def test_a_client_that_was_not_tested_is_named() -> None:
    assert list(examine_client(confluent_kafka.libversion()[0])) == []
    for version in ("2.6.1", "2.15.0", "2.17.0", "2.17.0-RC1", "3.0.0"):
        [finding] = examine_client(version)
        assert finding == Finding(Severity.UNCHECKED, finding.text)
        assert f"librdkafka {version}" in finding.text


def test_check_without_postgres_asks_nothing_more(kafka: EmbeddedKafka) -> None:
    assert all("transaction" not in finding.text for finding in examine(configured(kafka.bootstrap)))
