"""OutboxHook: Airflow's connections as a harvesting process is given them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from unit.conftest import PASSWORD, Connect

from airflow_outbox.errors import ConfigurationError, PostgresError
from airflow_outbox.hooks import outbox as module
from airflow_outbox.hooks.outbox import OutboxHook, check_settings

pytestmark = pytest.mark.usefixtures("connections")


def test_the_postgres_connection_becomes_a_libpq_string_with_its_extra() -> None:
    assert conninfo_to_dict(OutboxHook().data_source()) == {
        "host": "db.example",
        "port": "5433",
        "dbname": "shop",
        "user": "app",
        "password": PASSWORD,
        "sslmode": "verify-full",
        "options": "-c search_path=sales",
        "application_name": "airflow-outbox",
    }


def test_what_libpq_does_not_know_is_named(connect: Connect) -> None:
    connect("other", conn_type="postgres", host="h", password=PASSWORD, extra={"sslmood": "require"})
    with pytest.raises(ConfigurationError, match=r"connection other: .*sslmood") as error:
        OutboxHook(postgres_conn_id="other").data_source()
    assert PASSWORD not in str(error.value)


def test_the_configuration_is_complete_and_fits_through_a_pipe() -> None:
    config = OutboxHook(outbox="sales.outbox").harvest_config(limits={"mark_records": 10}, leader_topic="leader")
    assert json.loads(json.dumps(config)) == config
    assert config["outbox_table"] == "sales.outbox"
    assert config["kafka"]["bootstrap.servers"] == "kafka.example:9092"
    assert config["limits"] == {"mark_records": 10}


def test_many_outboxes_take_the_place_of_the_one() -> None:
    config = OutboxHook(outbox="unused").harvest_config(outboxes=["tenant_*.outbox"])
    assert config["outboxes"] == ["tenant_*.outbox"]
    assert "outbox_table" not in config


def test_secrets_are_masked_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[str] = []
    monkeypatch.setattr(module, "mask_secret", masked.append)
    OutboxHook().harvest_config()
    assert {PASSWORD, "sasl-secret-9Z"} <= set(masked)
    assert "app" not in masked


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"sasl.username": "app"}, r"bootstrap\.servers"),
        ({"bootstrap.servers": "b:1", "oauth_cb": "some.module.function"}, "oauth_cb"),
        ({"bootstrap.servers": "b:1", "sasl.mechanism": {"no": "mapping"}}, r"kafka\.sasl\.mechanism"),
    ],
)
def test_a_kafka_connection_that_can_not_serve_is_refused(
    connect: Connect, extra: dict[str, Any], problem: str
) -> None:
    connect("broken", conn_type="kafka", extra=extra)
    with pytest.raises(ConfigurationError, match=problem):
        OutboxHook(kafka_conn_id="broken").harvest_config()


@pytest.fixture
def several(connect: Connect) -> OutboxHook:
    for name in ("east", "west"):
        connect(name, conn_type="kafka", extra={"bootstrap.servers": f"{name}:9092", "sasl.password": f"{name}-9Z"})
    return OutboxHook(kafka_conn_ids={"primary": "east", "west": "west"})


def test_each_of_several_clusters_has_a_connection(several: OutboxHook, monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[str] = []
    monkeypatch.setattr(module, "mask_secret", masked.append)
    config = several.harvest_config()
    assert "kafka" not in config
    assert {name: kafka["bootstrap.servers"] for name, kafka in config["clusters"].items()} == {
        "primary": "east:9092",
        "west": "west:9092",
    }
    assert {"east-9Z", "west-9Z"} <= set(masked)
    assert [*several.config().by_cluster()] == ["primary", "west"]
    assert several.token_source() is None
    with pytest.raises(ConfigurationError, match="clusters needs delivery"):
        several.harvest_config(delivery="at_least_once")


def test_tokens_are_not_relayed_to_several_clusters(
    several: OutboxHook, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{__name__}.token_for"
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", path)
    connect("west", conn_type="kafka", extra={"bootstrap.servers": "b:1", "oauth_cb": path})
    with pytest.raises(ConfigurationError, match="connection west: oauth_cb"):
        several.harvest_config()
    assert callable(several.config().clusters["west"]["oauth_cb"])


def token_for(config: str) -> tuple[str, float]:
    """An oauth_cb."""
    return f"token for {config}", time.time() + 100


def test_tokens_are_fetched_by_the_connections_function_which_the_process_is_not_given(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{__name__}.token_for"
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", path)
    extra = {"bootstrap.servers": "b:1", "oauth_cb": path, "sasl.oauthbearer.config": "scope"}
    connect("oauth", conn_type="kafka", extra=extra)
    hook = OutboxHook(kafka_conn_id="oauth")
    assert "oauth_cb" not in hook.harvest_config()["kafka"]
    source = hook.token_source()
    assert source is not None
    assert source().text == "token for scope"
    assert OutboxHook().token_source() is None


def test_another_python_function_is_refused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", "json.dumps")
    connect("stats", conn_type="kafka", extra={"bootstrap.servers": "b:1", "stats_cb": "json.dumps"})
    with pytest.raises(ConfigurationError, match="stats: stats_cb is a Python function"):
        OutboxHook(kafka_conn_id="stats").kafka_settings()


def test_a_password_that_expires_is_refused_for_harvesting(connect: Connect) -> None:
    connect("iam", conn_type="postgres", host="h", login="app", extra={"iam": True})
    with pytest.raises(ConfigurationError, match="connection iam: iam creates passwords that expire"):
        OutboxHook(postgres_conn_id="iam").harvest_config()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"limits": {"mark_record": 1}}, r"limits\.mark_record.*limits\.mark_records"),
        ({"data_source": "host=h"}, "data_source comes from the connections"),
        ({"delivery": "at_most_once"}, "delivery"),
        (
            {"kafka_producer": {"plugin.library.paths": "/tmp/mine.so"}},
            r"kafka_producer\.plugin\.library\.paths",
        ),
        ({"kafka_producer": {"bootstrap.servers": "mine:9092"}}, r"may not set kafka_producer\.bootstrap\.servers"),
        (
            {"kafka_consumer": {"sasl.kerberos.kinit.cmd": "id"}},
            r"may not set kafka_consumer\.sasl\.kerberos\.kinit\.cmd",
        ),
        (
            {"kafka_consumer": {"ssl.engine.location": "/tmp/mine.so"}},
            r"may not set kafka_consumer\.ssl\.engine\.location",
        ),
        ({"kafka_producer": {"metadata.broker.list": "mine:1"}}, r"A Dag may set acks, .*linger\.ms"),
    ],
)
def test_settings_are_examined_without_connections(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        check_settings(settings)


def test_a_server_that_is_not_there_is_an_error_that_names_the_connection(connect: Connect) -> None:
    connect("nowhere", conn_type="postgres", host="127.0.0.1", port=1, login="app", password=PASSWORD)
    hook = OutboxHook(postgres_conn_id="nowhere")
    with pytest.raises(PostgresError, match="connection nowhere"), hook.transaction():
        pass
    reached, message = hook.test_connection()
    assert not reached
    assert "connection nowhere" in message
    assert PASSWORD not in message
