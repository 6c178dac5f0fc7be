"""The configuration: strict, with errors that say what to do and never show a secret."""

from __future__ import annotations

import json
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


def test_an_unknown_key_that_is_near_to_none_gets_no_guess() -> None:
    text = problem(nosuch=1, limits={"a": 1})
    assert "unknown setting nosuch; known ones are data_source, " in text
    assert "unknown setting limits.a; known ones are " in text
    assert "nearest" not in text


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
        ({"leader_topic": "a b"}, "leader_topic: 'a b' can't be a topic's name"),
        ({"ledger_topic": ""}, "ledger_topic: '' can't be"),
        ({"kafka_producer": {"acks": [1]}}, "outbox.yaml: kafka_producer.acks: give a text, a number, true or false"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], says: str) -> None:
    assert says in problem(**changes)


CLUSTERS: dict[str, Any] = {
    "primary": {"bootstrap.servers": "east:9092", "sasl.password": "s3cret"},
    "west": {"bootstrap.servers": "west:9092", "sasl.password": "s3cret, too"},
}
NO_KAFKA = {"kafka": ...}


@pytest.mark.parametrize("group", ["limits", "verdict", "positions", "clusters", "outbox_table", "shards"])
def test_what_is_left_empty_is_left_out(group: str) -> None:
    found, plain = (HarvestConfig.validated({**SETTINGS, **more}, source="test") for more in ({group: None}, {}))
    assert found == plain
    assert found.model_fields_set == plain.model_fields_set


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data_source": None}, "data_source is missing"),
        ({"nothing": None}, "unknown setting nothing"),
        ({"limits": ["5s"]}, "limits: give its settings by their names"),
        ({"kafka": "host:9092"}, "kafka: give settings by their names"),
        ({"outboxes": "orders"}, "outboxes: give a list, such as [a, b]"),
        ({"data_source": 7}, "data_source: give a text"),
        ({"positions": {"enabled": "maybe"}}, "positions.enabled: give true or false"),
        ({"limits": {"batch_records": "many"}}, "limits.batch_records: give a whole number"),
        ({"limits": {"batch_records": 1.5}}, "limits.batch_records: give a whole number"),
        ({"limits": {"batch_records": 0}}, "limits.batch_records: it must be greater than"),
        ({"limits": {"poll_interval": [1]}}, "limits.poll_interval: give a number"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_plain_words(changes: dict[str, Any], says: str) -> None:
    assert says in problem(**changes)


def test_each_cluster_is_reached_by_its_own_settings() -> None:
    config = HarvestConfig.validated({"data_source": "", "clusters": CLUSTERS}, source="here")
    reached = {name: each.kafka["bootstrap.servers"] for name, each in config.by_cluster().items()}
    assert reached == {"primary": "east:9092", "west": "west:9092"}
    assert "s3cret" not in repr(config)
    single = HarvestConfig.validated(SETTINGS, source="here")
    assert single.by_cluster() == {"primary": single}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clusters": CLUSTERS}, "kafka and clusters exclude each other"),
        ({**NO_KAFKA, "clusters": {"west": CLUSTERS["west"]}}, "clusters.primary is missing"),
        ({**NO_KAFKA, "clusters": {**CLUSTERS, "west": {}}}, "clusters: west: bootstrap.servers is missing"),
        ({**NO_KAFKA, "clusters": {**CLUSTERS, "New York": {}}}, "'New York' is no name for a cluster"),
        ({**NO_KAFKA, "clusters": ["east", "west"]}, "give each cluster's settings by its name"),
        ({**NO_KAFKA, "clusters": CLUSTERS, "delivery": "at_least_once"}, "clusters needs delivery: exactly_once"),
        (
            {**NO_KAFKA, "clusters": CLUSTERS, "transaction_headers": {"place": "n"}},
            "clusters and transaction_headers exclude each other",
        ),
        (
            {**NO_KAFKA, "clusters": CLUSTERS, "kafka_producer": {"sasl.password": "s3cret"}},
            "kafka_producer.sasl.password would be used for all clusters",
        ),
        ({**NO_KAFKA, "clusters": CLUSTERS, "kafka_producer": {"partitioner": "random"}}, "needs a partitioner"),
        (
            {**NO_KAFKA, "clusters": {**CLUSTERS, "west": {**CLUSTERS["west"], "partitioner": "consistent_random"}}},
            "clusters.west.partitioner is another than the primary's",
        ),
        ({"require": "most"}, "require: it must be 'all' or 'primary'"),
        ({"kafka": ..., "data_source": ..., "harvest": {"clusters": CLUSTERS}}, "goharvest's has one cluster"),
    ],
)
def test_what_several_clusters_need_is_said(changes: dict[str, Any], says: str) -> None:
    assert says in problem(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"outbox_table": "outbox"}, "outbox_table and outboxes exclude each other"),
        ({"outboxes": ["a-b"]}, "outboxes: 'a-b' is no outbox, and no pattern"),
        ({**NO_KAFKA, "clusters": CLUSTERS}, "outboxes and clusters exclude each other"),
        ({"shards": 2}, "outboxes and shards exclude each other"),
        ({"positions": {"enabled": True}}, "outboxes and positions.enabled exclude each other"),
        ({"tracing": {"enabled": True}}, "outboxes and tracing.enabled exclude each other"),
        ({"ledger_topic": "l"}, "outboxes and ledger_topic exclude each other"),
        ({"transactional_id": "t"}, "outboxes and transactional_id exclude each other"),
    ],
)
def test_what_many_outboxes_can_not_have_is_said(changes: dict[str, Any], says: str) -> None:
    assert says in problem(**{"outboxes": ["tenant_*.outbox"], **changes})


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text("data_source: dbname=app\nclusters:\n  primary: {}\n  west: {}\n  west: {}\n")
    with pytest.raises(ConfigurationError, match=r"line 5: not YAML: west is there twice"):
        HarvestConfig.from_yaml(file)


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


def test_settings_for_another_process_are_json_and_the_same() -> None:
    given = {**SETTINGS, "processes": 4, "limits": {"poll_interval": "20ms"}}
    config = HarvestConfig.validated({**given, "kafka": {**SETTINGS["kafka"], "oauth_cb": "json.dumps"}}, source="here")
    passed = json.loads(json.dumps(config.as_settings()))
    assert passed.keys() == given.keys()  # nothing that was left to the defaults
    assert passed["kafka"] == {**SETTINGS["kafka"], "oauth_cb": "json.dumps"}
    assert HarvestConfig.validated(passed, source="there").limits == config.limits
    several = {"data_source": "", "clusters": {**CLUSTERS, "west": {**CLUSTERS["west"], "oauth_cb": "json.dumps"}}}
    passed = json.loads(json.dumps(HarvestConfig.validated(several, source="here").as_settings()))
    assert passed == several
    unnamed = HarvestConfig.validated({**SETTINGS, "kafka_producer": {"error_cb": print}}, source="here")
    with pytest.raises(ConfigurationError, match=r"kafka_producer\.error_cb is a Python function"):
        unnamed.as_settings()
