"""The page in the oldest Airflow that has it, and in the oldest that has the commands, too; each installed for that.

It shows what only their real API servers and command lines can tell.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import psycopg
import pytest
from support.api_server import ApiServer, as_connection
from support.installed_airflow import install_airflow

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

WITH_PAGE = (
    "apache-airflow-core==3.1.1",
    "apache-airflow-task-sdk==1.1.1",
    # That release does not bound these, and newer ones came after it.
    "cadwyn==5.4.6",
    "fastapi==0.117.1",
    "pydantic==2.12.5",
    "pyjwt==2.10.1",
    "sqlalchemy==2.0.58",
    "starlette==0.48.0",
    "structlog==25.4.0",
)
WITH_COMMANDS = (
    "apache-airflow-core==3.2.2",
    "apache-airflow-task-sdk==1.2.2",
    "cadwyn==7.0.0",
    "fastapi==0.136.3",
    "pydantic==2.12.5",
    "pyjwt==2.15.1",
    "sqlalchemy==2.1.9",
    "starlette==1.10.0",
    "structlog==26.1.0",
)


@pytest.fixture
def program(tmp_path: Path, release: tuple[str, ...]) -> Path:
    """That Airflow."""
    return install_airflow(tmp_path / "environment", *release)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("release", "has_commands"), [(WITH_PAGE, False), (WITH_COMMANDS, True)], ids=["page", "commands"]
)
def test_the_page_is_there(
    program: Path, outboxes: str, postgres: EmbeddedPostgres, tmp_path: Path, has_commands: bool
) -> None:
    name = "oldest_airflow"
    postgres.create_database(name)
    dags = Path(__file__).parent / "dags"
    brokers = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:9"}}
    connections = {"postgres_default": as_connection(outboxes), "kafka_default": brokers}
    folder = tmp_path / "airflow"
    folder.mkdir()
    try:
        with ApiServer(
            folder, dags=dags, database=postgres.uri(name), connections=connections, base="/a/base", program=program
        ) as server:
            with server.visitor("viewer") as viewer:
                shown = viewer.get("./").raise_for_status().text
                one = viewer.get("one", params={"outbox": "postgres_default:harvested"}).raise_for_status().text
                tab = viewer.get("dag", params={"dag_id": "harvesting"}).raise_for_status().text
                refused = viewer.post("act/pause", params={"outbox": "postgres_default:harvested"})
            with server.visitor("admin") as admin:
                plugins = admin.get(f"{server.url}/api/v2/plugins").raise_for_status().json()["plugins"]
            with server.visitor(None) as nobody:
                assert nobody.get("./").status_code == 401
            asked = server.run("outbox", "status", "--output", "json", "--outbox", "harvested")
    finally:
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    assert set(re.findall(r'data-key="([^"]+)"', shown)) >= {"postgres_default:harvested", "postgres_default:watched"}
    assert "NO LEADER" in one  # so the connection was resolved, and Postgres asked
    assert "postgres_default%3Aharvested" in tab
    assert refused.status_code == 403
    [plugin] = [each for each in plugins if each["name"] == "outbox"]
    assert {view["destination"] for view in plugin["external_views"]} == {"nav", "dag", "task_instance"}
    assert (asked.returncode == 0) == has_commands, asked.stderr
    if has_commands:
        assert json.loads(asked.stdout.splitlines()[-1])["verdict"]["state"] == "no_leader"
    else:
        assert "invalid choice: 'outbox'" in asked.stderr
