"""Every setting of librdkafka, given to all clients: its default starts them, a wrong value is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from airflow_outbox.errors import ConfigurationError, KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka import settings
from airflow_outbox.harvest.kafka.consumer import new_consumer
from airflow_outbox.harvest.kafka.election_settings import consumer_settings, heartbeat_settings
from airflow_outbox.harvest.kafka.errors import REFUSALS, refused_settings
from airflow_outbox.harvest.kafka.producer import producer_settings
from airflow_outbox.harvest.kafka.settings import remarks, shared, under_one_name
from airflow_outbox.harvest.kafka.transactional_client import transactional_settings

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}


class Setting(NamedTuple):
    name: str
    clients: str
    kind: str
    default: str
    span: str

    def wrong(self) -> Iterator[str]:
        """Values that it can't have; none if it may have any."""
        if self.kind not in ("string", "patterns"):
            yield "nonsense"
        if self.kind == "integer":
            least, most = map(int, self.span.split(".."))
            yield from (str(least - 1), str(most + 1))


ALL = [
    Setting(*line.split())
    for line in Path(__file__).with_name("librdkafka.txt").read_text().splitlines()
    if not line.startswith("#")
]


def configured(kafka: dict[str, Any], **more: Any) -> HarvestConfig:
    return HarvestConfig.validated({"data_source": "", "kafka": {**SERVERS, **kafka}, **more}, source="test")


def refusal(kafka: dict[str, Any]) -> str | None:
    """Why some client, or the configuration, refuses settings; None if all clients start."""
    try:
        config = configured(kafka)
        Producer(producer_settings(config))
        Producer(transactional_settings(config, "t"))
        Producer(heartbeat_settings(config, 1))
        AdminClient(shared(config.kafka))
        Consumer(consumer_settings(config, "g", place="p")).close()
        new_consumer(config, on_error=lambda _: None).close()
    except (ConfigurationError, KafkaError) as error:
        return str(error)
    except REFUSALS as error:
        return str(refused_settings(error, {}, remedy="Correct kafka"))
    return None


def test_the_kinds_of_clients_are_librdkafkas() -> None:
    known = {"on_commit", "on_delivery", "allow.auto.create.topics"}  # the binding's names; one that only we set
    for kind, ours in (("P", settings._PRODUCERS), ("C", settings._CONSUMERS)):
        theirs = {settings._NAMES.get(each.name, each.name) for each in ALL if each.clients == kind}
        assert ours - known == theirs - known


@pytest.mark.parametrize("setting", [each for each in ALL if each.default != "-"], ids=lambda each: each.name)
def test_clients_start_by_a_default(setting: Setting) -> None:
    assert refusal({setting.name: setting.default}) is None


@pytest.mark.parametrize("setting", [each for each in ALL if [*each.wrong()]], ids=lambda each: each.name)
def test_a_wrong_value_is_refused_in_one_line_unless_it_has_no_effect(setting: Setting) -> None:
    for value in setting.wrong():
        error = refusal({setting.name: value})
        known = settings._NAMES.get(setting.name, setting.name)
        if known in settings._PROTOCOL:
            assert error is None
            assert f"kafka.{known} has no effect" in "".join(remarks(configured({setting.name: value})))
        else:
            assert error is not None, value
            assert "\n" not in error
            assert error.count(". ") <= 2


def test_what_tools_share_reaches_each_client_as_far_as_it_is_its_own() -> None:
    kafka = {"acks": 1, "enable.idempotence": True, "retries": 3, "group.id": "g", "fetch.min.bytes": 7, "debug": "msg"}
    config = configured(kafka)
    producer, consumer = transactional_settings(config, "t"), consumer_settings(config, "ours", place="p")
    assert (producer["acks"], producer["retries"], producer["debug"]) == ("all", 3, "msg")
    assert (consumer["group.id"], consumer["fetch.min.bytes"], consumer["debug"]) == ("ours", 7, "msg")
    assert producer.keys() & {"group.id", "fetch.min.bytes"} == set()
    assert consumer.keys() & {"acks", "enable.idempotence", "retries"} == set()
    for other in (shared(config.kafka), heartbeat_settings(config, 1)):
        assert other.keys() & {"retries", "group.id", "fetch.min.bytes"} == set()
        assert other["debug"] == "msg"


def test_remarks_name_what_has_no_effect() -> None:
    config = configured(
        {"acks": 1, "group.id": "g", "max.in.flight": 9, "linger.ms": 7},
        kafka_producer={"fetch.min.bytes": 1, "linger.ms": 8},
        kafka_consumer={"linger.ms": 9, "session.timeout.ms": 6000},
    )
    unused, bounded = remarks(config)
    assert unused.startswith(
        "kafka.acks, kafka.group.id, kafka_producer.fetch.min.bytes, kafka_consumer.linger.ms, "
        "kafka_consumer.session.timeout.ms have no effect"
    )
    assert bounded.startswith("kafka.max.in.flight.requests.per.connection counts as 5")
    assert [*remarks(configured({"linger.ms": 7}))] == []


def test_a_setting_has_one_name() -> None:
    assert under_one_name({"queue.buffering.max.ms": 7}) == {"linger.ms": 7}
    assert under_one_name({"queue.buffering.max.ms": 7, "linger.ms": 7}) == {"linger.ms": 7}
    for twice in ({"queue.buffering.max.ms": 7, "linger.ms": 8}, {"linger.ms": 8, "queue.buffering.max.ms": 7}):
        with pytest.raises(ValueError, match="Give it once") as raised:
            under_one_name(twice)
        assert {"queue.buffering.max.ms", "linger.ms"} <= set(str(raised.value).split())


def test_brokers_of_a_test_are_refused() -> None:
    assert "test.mock.num.brokers" in str(refusal({"test.mock.num.brokers": 3}))
