"""The configuration: strict, with errors that say what to do and never show a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig

SETTINGS: dict[str, Any] = {
    "data_source": "password=s3cret",
    "kafka": {"bootstrap.servers": "127.0.0.1:9092", "sasl.password": "s3cret"},
}


def problem(**changes: Any) -> str:
    settings = {name: value for name, value in {**SETTINGS, **changes}.items() if value is not ...}
    with pytest.raises(ConfigurationError) as caught:
        HarvestConfig.validated(settings, source="outbox.yaml")
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def test_defaults() -> None:
    config = HarvestConfig.validated(SETTINGS, source="here")
    assert config.outbox_table == "outbox"
    assert (config.limits.heartbeat_timeout, config.limits.session_timeout) == (2, 6)
    assert "s3cret" not in repr(config)


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ({"outbox_tabel": "o"}, "outbox_table"),
        ({"datasource": "x"}, "data_source"),
        ({"limits": {"mark_record": 1}}, "limits.mark_records"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(unknown: dict[str, Any], nearest: str) -> None:
    text = problem(**unknown)
    assert "unknown setting" in text
    assert f"the nearest known one is {nearest}" in text


@pytest.mark.parametrize(("text", "seconds"), [("100ms", 0.1), ("2s", 2), ("1.5s", 1.5), (0.25, 0.25), (3, 3)])
def test_durations(text: object, seconds: float) -> None:
    config = HarvestConfig.validated({**SETTINGS, "limits": {"heartbeat_timeout": text}}, source="here")
    assert config.limits.heartbeat_timeout == seconds


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data_source": ...}, "data_source is missing"),
        ({"kafka": {}}, "kafka: bootstrap.servers is missing"),
        ({"limits": {"heartbeat_timeout": "soon"}}, "limits.heartbeat_timeout: give a duration such as 100ms"),
        ({"limits": {"heartbeat_timeout": "6s"}}, "must be below session_timeout"),
        ({"limits": {"mark_records": 0}}, "limits.mark_records"),
        ({"outbox_table": "a b"}, "is not a table's name"),
        ({"outbox_table": "o" * 60}, "too long"),
        ({"delivery": "twice"}, "at_least_once"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], says: str) -> None:
    assert says in problem(**changes)


def test_yaml(tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    with pytest.raises(ConfigurationError, match="can't read"):
        HarvestConfig.from_yaml(file)
    file.write_text("data_source: [")
    with pytest.raises(ConfigurationError, match=r"outbox.yaml, line \d+: not YAML"):
        HarvestConfig.from_yaml(file)
    file.write_text("just text")
    with pytest.raises(ConfigurationError, match="must be a mapping"):
        HarvestConfig.from_yaml(file)
    file.write_text("data_source: dbname=app\nkafka: {bootstrap.servers: here}\nlimits: {poll_interval: 20ms}\n")
    assert HarvestConfig.from_yaml(file).limits.poll_interval == 0.02


GOHARVEST = """
harvest:
  baseKafkaConfig:
    bootstrap.servers: localhost:9094
    security.protocol: sasl_ssl
    sasl.mechanism: SCRAM-SHA-512
    sasl.username: alice
    sasl.password: s3cret
  producerKafkaConfig:
    compression.type: lz4
    delivery.timeout.ms: 10000
  leaderTopic: my-app-name
  leaderGroupID: my-app-name
  dataSource: host=localhost port=5432 user=postgres password=s3cret dbname=postgres sslmode=disable
  outboxTable: app.outbox
  limits:
    minPollInterval: 1s
    heartbeatTimeout: 5s
    maxInFlightRecords: 1000
    markQueryRecords: 200
    markBackoff: 20ms
    sendConcurrency: 4
    ioErrorBackoff: 500ms
  delivery: at_least_once
logging:
  level: Debug
"""


def test_goharvests_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "reaper.yaml"
    file.write_text(GOHARVEST)
    config = HarvestConfig.from_yaml(file)
    assert config.data_source.startswith("host=localhost port=5432")
    assert (config.outbox_table, config.leader_topic, config.leader_group_id) == (
        "app.outbox",
        "my-app-name",
        "my-app-name",
    )
    assert config.kafka["security.protocol"] == "sasl_ssl"
    assert config.kafka_producer == {
        "partitioner": "consistent_random",
        "compression.type": "lz4",
        "delivery.timeout.ms": 10000,
    }
    limits = config.limits
    assert (limits.heartbeat_timeout, limits.session_timeout) == (5, 15)
    assert (limits.max_in_flight_records, limits.mark_records, limits.poll_interval) == (1000, 200, 0.02)
    assert config.log_level == "debug"


def test_where_goharvests_file_is_silent_it_means_what_goharvest_does() -> None:
    config = HarvestConfig.validated({"harvest": {}}, source="reaper.yaml")
    assert config.kafka == {"bootstrap.servers": "localhost:9092"}
    assert (config.outbox_table, config.delivery, config.log_level) == ("outbox", "at_least_once", "info")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"harvest": {"dataSorce": "x"}},
            "unknown setting harvest.dataSorce; the nearest known one is harvest.dataSource",
        ),
        ({"harvest": {"limits": {"sendBufer": 1}}}, "the nearest known one is harvest.limits.sendBuffer"),
        ({"harvest": {"limits": {"heartbeatTimeout": "soon"}}}, "harvest.limits.heartbeatTimeout: give a duration"),
        ({"harvest": {}, "loging": {}}, "unknown setting loging; the nearest known one is logging"),
        ({"harvest": {}, "logging": {"level": "loud"}}, "logging.level"),
        ({"harvest": {"delivery": "twice"}}, "delivery"),
    ],
)
def test_goharvests_file_is_read_as_strictly(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        HarvestConfig.validated(settings, source="reaper.yaml")
    assert says in str(caught.value)
