"""Outboxes in which innocents meet one hostile thing, on the session's servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hostile.innocents import Innocents
from hostile.town import PASSWORD, ROLES, Town
from support.harvesting import make_outbox, make_topic

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

MODES = {"single": {}, "atomic": {"atomic": True}, "at least once": {"delivery": "at_least_once"}}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """How the outbox is harvested; a test that is about one mode only names it by a parametrisation of its own."""
    return str(request.param)


@pytest.fixture
def innocents(mode: str, database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Innocents:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", **MODES[mode])
    return Innocents(outbox, tmp_path / "outbox.yaml")


@pytest.fixture
def town(
    postgres: EmbeddedPostgres, database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Town]:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    town = Town(postgres, str(name), tmp_path, kafka.bootstrap, topic_prefix + "data", uuid.uuid4().hex[:8])
    make_topic({"bootstrap.servers": kafka.bootstrap}, town.topic)
    with psycopg.connect(database, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(f"CREATE ROLE {town.role(role)} LOGIN PASSWORD '{PASSWORD}'".encode())
        connection.execute(f"ALTER DATABASE {name} OWNER TO {town.role('owner')}".encode())
        connection.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")  # as it was up to Postgres 14
        yield town
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        postgres.drop_database(str(name))
        for role in ROLES:
            connection.execute(f"DROP ROLE {town.role(role)}".encode())
