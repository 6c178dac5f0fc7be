"""One real API server for all tests here, over outboxes on the real Postgres."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from support.api_server import ROLES, ApiServer, as_connection

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

OUTBOXES = ("harvested", "watched", "configured", "sharded", "clustered", "tenant_a", "shop_a.outbox")


@pytest.fixture(scope="package")
def outboxes(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The connection string of a database with the outboxes of the Dags."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    database = postgres.create_database(name)
    with connect(database, purpose="test") as connection:
        connection.execute("CREATE SCHEMA shop_a")
        for table in OUTBOXES:
            init_outbox(connection, OutboxName.parse(table), key_type="varchar(100)")
        add_clusters(connection, OutboxName.parse("clustered"), ["west"])
    yield database
    postgres.drop_database(name)


@pytest.fixture
def west_is_a_backup(outboxes: str) -> None:
    make_west_a_backup(outboxes)


def make_west_a_backup(database: str) -> None:
    """The outbox with two clusters is as it was made."""
    with psycopg.connect(database) as connection:
        connection.execute("TRUNCATE clustered_trail RESTART IDENTITY")
        connection.execute("UPDATE clustered_state SET attach_wanted = NULL, attach_how = NULL")
        for part, cluster in (("backup", "west"), ("primary", "primary")):  # there is never more than one primary
            connection.execute("UPDATE clustered_cluster SET part = %s, reason = NULL WHERE name = %s", (part, cluster))
        connection.execute("UPDATE clustered_shard SET primary_cluster = 'primary'")


@pytest.fixture(scope="package")
def flights(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The connection string of the demo's database, with its outbox."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    database = postgres.create_database(name)
    with connect(database, purpose="test") as connection:
        init_outbox(connection, OutboxName.parse("outbox"), key_type="varchar(100)")
    yield database
    postgres.drop_database(name)


@pytest.fixture(scope="package")
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="package")
def server(
    postgres: EmbeddedPostgres,
    kafka: EmbeddedKafka,
    outboxes: str,
    flights: str,
    silent: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ApiServer]:
    """Airflow's API server under a base path. It knows two clusters: one is lost."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgres.create_database(name)
    known = as_connection(outboxes)
    connections = {
        "postgres_default": known,
        "silent": {**known, "port": silent},
        "flights_db": as_connection(flights),
        "kafka_lost": {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}},
        "kafka_west": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap}},
    }
    with ApiServer(
        tmp_path_factory.mktemp("airflow"),
        dags=Path(__file__).parent / "dags",
        database=postgres.uri(name),
        connections=connections,
        base="/a/base",
        environment={"AIRFLOW__OUTBOX__OUTBOXES": "postgres_default:configured, postgres_default:sharded"},
    ) as started:
        yield started
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(scope="package")
def visitors(server: ApiServer) -> Iterator[dict[str, httpx.Client]]:
    """A browser for each role, and one of nobody."""
    clients = {role: server.visitor(role) for role in ROLES}
    clients["nobody"] = server.visitor(None)
    yield clients
    for client in clients.values():
        client.close()
