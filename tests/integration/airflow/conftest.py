"""One real Airflow for all tests here, outboxes on the real servers, and eyes for the processes that come and go."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.harvesting import Outbox, make_outbox

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements

ROLE = "harvester"
PASSWORD = "not-to-be-seen-4H7"
CHILD = "airflow_outbox.harvest"
MARKER = "OUTBOX_TESTS_SERVER"
"""What every process of this Airflow has in its environment, the harvesting ones too, whoever has adopted them."""
AIRFLOW_PATIENCE = 180.0
"""Seconds that a test waits for Airflow itself: a Dag is read, a task begins. A busy machine takes minutes."""
TRIGGERER_TIMEOUT = 10
"""How many seconds a triggerer may be silent before the others take its triggers."""


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch) -> Outbox:
    """An outbox behind Airflow's default connections, in this process."""
    for conn_id, connection in connections(database, kafka).items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
    return make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")


def connections(database: str, kafka: EmbeddedKafka, **login: str) -> dict[str, dict[str, Any]]:
    server = conninfo_to_dict(database)
    known = {"host": server["host"], "port": int(server["port"]), "schema": server["dbname"]}
    known |= {"login": server["user"], "password": server["password"]}
    return {
        "postgres_default": {"conn_type": "postgres", **known, **login},
        "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap}},
    }


@pytest.fixture(scope="session")
def outboxes(postgres: EmbeddedPostgres, kafka: EmbeddedKafka) -> Iterator[dict[str, Outbox]]:
    """The outboxes of the Dags, by name; Airflow reaches them as a role that may harvest and stash, by password."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    database = postgres.create_database(name)
    tables = ("drained", "forever", "watched", "stashed", "steady_task", "steady_asset", "published")
    made = {
        table: make_outbox(database, bootstrap=kafka.bootstrap, topic=f"{name}-{table}", outbox_table=table)
        for table in tables
    }
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'".encode())
        connection.execute("CREATE TABLE business (run TEXT NOT NULL)")
        connection.execute(f"GRANT INSERT ON business TO {ROLE}".encode())
        for table in made:
            for role in ("harvest", "job"):
                for statement in grant_statements(connection, OutboxName.parse(table), role, ROLE):
                    connection.execute(statement.encode())
    yield made
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {ROLE}".encode())
    postgres.drop_database(name)
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"DROP ROLE {ROLE}".encode())


@pytest.fixture(scope="session")
def metadata(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The name of Airflow's metadata database."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgres.create_database(name)
    yield name
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def airflow(
    outboxes: dict[str, Outbox],
    metadata: str,
    postgres: EmbeddedPostgres,
    kafka: EmbeddedKafka,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AirflowStandalone]:
    """A real Airflow with the Dags of this folder, paused, and one real triggerer."""
    database = outboxes["drained"].database
    folder = tmp_path_factory.mktemp("airflow")
    with AirflowStandalone(
        folder,
        dags=Path(__file__).parent / "dags",
        database=postgres.uri(metadata),
        connections=connections(database, kafka, login=ROLE, password=PASSWORD),
        environment={
            MARKER: str(folder),
            "OUTBOX_TESTS_TOPIC": outboxes["published"].topic,
            # A pause reaches an asset's trigger when the Dag file is read again.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(TRIGGERER_TIMEOUT),
        },
        parallelism=2,
    ) as standalone:
        standalone.api.wait_for_dag("watching")
        standalone.api.wait_for_dag("steady_asset")
        yield standalone


def processes_of(airflow: AirflowStandalone, word: str) -> list[psutil.Process]:
    """The processes of this Airflow, also those that it has lost, with this word on their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if word in process.cmdline() and process.environ().get(MARKER) == str(airflow.folder):
                found.append(process)
    return [process for process in found if not gone(process)]


def harvesting(airflow: AirflowStandalone) -> list[psutil.Process]:
    """The harvesting processes of this Airflow."""
    return processes_of(airflow, CHILD)


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
