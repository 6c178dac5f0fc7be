"""`airflow outbox …` as typed: an outbox that only Airflow's connections name."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from support.api_server import as_connection
from support.harvesting import make_outbox

from airflow_outbox.demo.embedded.airflow import airflow_program
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.names import OutboxName

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def airflow(database: str, kafka: EmbeddedKafka, tmp_path: Path) -> Run:
    brokers = {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap}}
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW_OUTBOX_FILE": "not for these commands",
        "AIRFLOW_CONN_SHOP": json.dumps(as_connection(database)),
        "AIRFLOW_CONN_BROKERS": json.dumps(brokers),
        "AIRFLOW_CONN_LOST": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}),
    }

    def airflow(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [airflow_program(), "outbox", *arguments, "--postgres-conn-id", "shop", "--kafka-conn-id", "brokers"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)

    return airflow


def test_an_outbox_is_resharded_and_shown_by_its_connections(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, airflow: Run
) -> None:
    make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    resharded = airflow("reshard", "2")
    assert resharded.returncode == 0, resharded.stderr
    assert resharded.stdout.splitlines()[-1] == '"outbox" has 2 shards, layout 2'
    shown = airflow("status", "--output", "json", "--fail-unless-leading")
    assert shown.returncode == 3, shown.stderr
    found = json.loads(shown.stdout.splitlines()[-1])  # above, Airflow may say that it is under test
    assert found["verdict"]["state"] == "no_leader"
    assert len(found["shards"]) == 2
    assert shown.stderr.splitlines()[-1] == "fails: nobody leads shards 0 and 1"


def test_clusters_are_detached_and_promoted_by_their_connections(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, airflow: Run
) -> None:
    """The primary is lost: its connection leads nowhere."""
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    with psycopg.connect(database) as connection:
        add_clusters(connection, OutboxName.parse("outbox"), ["west", "north"])
    named = ["--cluster", "primary=lost", "--cluster", "west=brokers", "--cluster", "north=lost"]
    detached = airflow("clusters", "detach", "north", "--reason", "a storm", "--on-behalf-of", "ada", *named)
    assert detached.returncode == 0, detached.stderr
    assert re.search(r"^north: owed since .+ UTC: a storm$", detached.stdout, re.MULTILINE)
    promoted = airflow("clusters", "promote", "west", "--on-behalf-of", "ada", *named)
    assert promoted.returncode == 0, promoted.stderr
    assert re.findall(r"^(\w+): (primary|backup|owed)", promoted.stdout, re.MULTILINE) == [
        ("west", "primary"),
        ("north", "owed"),
        ("primary", "owed"),
    ]
    trail = outbox.query("SELECT action, on_behalf_of, matched FROM outbox_trail ORDER BY number")
    assert trail == [("detach", "ada", "north"), ("promote", "ada", "west")]
