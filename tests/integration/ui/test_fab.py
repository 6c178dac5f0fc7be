"""Every route as everybody, on a real API server whose accounts and roles are those of Airflow's FAB provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psycopg
import pytest
from support.api_server import ROLES, ApiServer, as_connection
from support.installed_airflow import ROOT, install_airflow
from support.parking import park_by_hand

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

from .conftest import make_west_a_backup
from .test_access import CONFIGURED, MAY, ROUTES, Route, send

PROVIDER = "apache-airflow-providers-fab==3.10.2"
OLDER = "python-dateutil=="
"""Flask-AppBuilder needs an older one than these tests do."""
SETTINGS = {
    "AIRFLOW__CORE__AUTH_MANAGER": "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
    "AIRFLOW__OUTBOX__OUTBOXES": "postgres_default:configured",
}


class FabServer(ApiServer):
    """An API server whose users are in its metadata database."""

    def __enter__(self) -> Self:
        self.airflow("db", "migrate")
        self.airflow("fab-db", "migrate")
        for role in ROLES:
            who = ("--username", role, "--password", role, "--firstname", role, "--lastname", role)
            self.airflow("users", "create", *who, "--email", f"{role}@example.com", "--role", role.capitalize())
        return super().__enter__()


@pytest.fixture
def server(postgres: EmbeddedPostgres, outboxes: str, tmp_path: Path) -> Iterator[ApiServer]:
    name = "fab_airflow"
    postgres.create_database(name)
    folder = tmp_path / "airflow"
    folder.mkdir()
    constraints = tmp_path / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(line for line in pinned if not line.startswith(OLDER)))
    program = install_airflow(tmp_path / "environment", "--constraint", str(constraints), PROVIDER)
    with FabServer(
        folder,
        dags=Path(__file__).parent / "dags",
        database=postgres.uri(name),
        connections={"postgres_default": as_connection(outboxes)},
        base="/a/base",
        environment=SETTINGS,
        program=program,
    ) as started:
        yield started
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_route_answers_those_who_may(server: ApiServer, outboxes: str) -> None:
    with psycopg.connect(outboxes, autocommit=True) as connection:
        for outbox in ("harvested", "configured"):
            connection.execute(f"TRUNCATE {outbox}_parked, {outbox}_trail RESTART IDENTITY".encode())
            park_by_hand(connection, "k", topic="t", outbox=outbox)
    for role, may in MAY.items():
        make_west_a_backup(outboxes)
        with server.visitor(None if role == "nobody" else role) as client:
            found = {each: send(client, *each, route).status_code for each, route in ROUTES.items()}
            refused = 401 if role == "nobody" else 403
            assert found == {each: route.answer if route.needs in may else refused for each, route in ROUTES.items()}, (
                role
            )
            if role == "nobody":
                continue
            other = Route("act", CONFIGURED, body={})  # no Dag harvests it: the connection decides
            paused = send(client, "POST", "/act/pause", other).status_code
            assert paused == (200 if role in ("op", "admin") else 403), role
