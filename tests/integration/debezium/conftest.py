"""A Postgres whose log can be decoded, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres


@pytest.fixture(scope="session")
def logical_postgres(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    """A server with `wal_level=logical` and room for a slot of each case's."""
    settings = {"wal_level": "logical", "max_replication_slots": "40", "max_wal_senders": "40"}
    with EmbeddedPostgres(server_folder / "postgres-logical", fsync=False, settings=settings) as server:
        yield server


@pytest.fixture
def logical_database(logical_postgres: EmbeddedPostgres) -> Iterator[str]:
    """The connection string of an empty database there."""
    name = f"test_{uuid4().hex[:12]}"
    with psycopg.connect(logical_postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield make_conninfo(logical_postgres.dsn(), dbname=name)
    with psycopg.connect(logical_postgres.dsn(), autocommit=True) as connection:
        slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s AND active", [name]
        )
        connection.execute(slots, [name])
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
