"""Lineage: real tasks on real servers, and the events that OpenLineage's provider writes into a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.hooks.lineage import TableLocation, published_topics
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements, init_outbox

from .conftest import Outbox, connections

DAGS = Path(__file__).with_name("lineage_dags.py")
Datasets = set[tuple[str, str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of an Airflow with a metadata database."""
    folder = tmp_path_factory.mktemp("lineage")
    airflow = str(Path(sys.executable).with_name("airflow"))
    subprocess.run([airflow, "db", "migrate"], env=environment(folder), check=True, capture_output=True)
    return folder


def environment(home: Path, **more: str) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
    own = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    return {**others, **own, "AIRFLOW__CORE__DAGS_FOLDER": str(home), **more}


def run(dag: str, home: Path, outbox: Outbox) -> list[dict[str, Any]]:
    """Run a Dag to its end; the events of its tasks, oldest first."""
    told = home / f"{dag}.json"
    transport = json.dumps({"type": "file", "log_file_path": str(told), "append": True})
    with_openlineage = environment(home, AIRFLOW__OPENLINEAGE__TRANSPORT=transport, OUTBOX_TESTS_TOPIC=outbox.topic)
    ran = subprocess.run([sys.executable, str(DAGS), dag], env=with_openlineage, capture_output=True, text=True)
    assert told.exists(), ran.stdout + ran.stderr
    events = [json.loads(line) for line in told.read_text().splitlines()]
    return [event for event in events if event["job"]["name"].startswith(f"{dag}.")]


def datasets(events: list[dict[str, Any]], job: str, state: str, side: str) -> list[Datasets]:
    """What each event of a task in a state names."""
    return [
        {(dataset["namespace"], dataset["name"]) for dataset in event[side]}
        for event in events
        if (event["job"]["name"], event["eventType"]) == (job, state)
    ]


def server(outbox: Outbox) -> str:
    known = conninfo_to_dict(outbox.database)
    return f"postgres://{known['host']}:{known['port']}"


def table(outbox: Outbox, name: str) -> tuple[str, str]:
    return server(outbox), f"{conninfo_to_dict(outbox.database)['dbname']}.public.{name}"


def topic(outbox: Outbox) -> tuple[str, str]:
    return f"kafka://{outbox.bootstrap}", outbox.topic


def test_tables_come_in_and_topics_go_out(home: Path, outbox: Outbox) -> None:
    outbox.query("CREATE TABLE business (run TEXT); CREATE TABLE prices (price TEXT)")
    events = run("ends", home, outbox)
    own, topics = table(outbox, "outbox"), topic(outbox)

    for state in ("START", "COMPLETE"):
        assert datasets(events, "ends.stash", state, "inputs") == [{table(outbox, "prices")}]
        assert datasets(events, "ends.stash", state, "outputs") == [{own, table(outbox, "business"), topics}]
    for task in ("first", "second", "published"):
        for state in ("START", "COMPLETE"):
            named = datasets(events, f"ends.{task}", state, "inputs")
            assert named, f"no {state} of {task}"
            assert all(each == {own} for each in named)

    assert datasets(events, "ends.first", "START", "outputs")[0] == set()  # nothing was ever published
    assert datasets(events, "ends.first", "COMPLETE", "outputs") == [{topics}]
    assert datasets(events, "ends.second", "START", "outputs")[0] == {topics}
    assert datasets(events, "ends.published", "COMPLETE", "outputs") == [set()]


def test_a_spark_job_that_fails_still_has_its_table_and_what_its_dag_declares(home: Path, outbox: Outbox) -> None:
    events = run("fails", home, outbox)
    for state in ("START", "FAIL"):
        assert datasets(events, "fails.spark", state, "inputs") == [{("file", "/data/flights.csv")}]
        assert datasets(events, "fails.spark", state, "outputs") == [{table(outbox, "outbox")}]


@contextmanager
def acting_as(role: str, *, may: tuple[str, ...], outbox: Outbox, kafka: EmbeddedKafka) -> Iterator[pytest.MonkeyPatch]:
    """Let the Postgres connection be one of a role that has only these rights."""
    with psycopg.connect(outbox.database, autocommit=True) as owner, pytest.MonkeyPatch.context() as patch:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
        for right in may:
            for statement in grant_statements(owner, OutboxName.parse(outbox.name), right, role):
                owner.execute(statement.encode())
        made = connections(outbox.database, kafka, login=role, password="secret")["postgres_default"]
        patch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(made))
        try:
            yield patch
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_role_that_may_do_its_task_may_ask_for_its_lineage(outbox: Outbox, kafka: EmbeddedKafka) -> None:
    role = f"lineage_{outbox.topic[-12:]}"
    with acting_as(role, may=("job",), outbox=outbox, kafka=kafka):
        assert TableLocation.find(OutboxHook()).schema == "public"
    with acting_as(role, may=("harvest",), outbox=outbox, kafka=kafka):
        assert TableLocation.find(OutboxHook()).schema == "public"
        assert published_topics(OutboxHook()) == []


def test_the_schema_is_the_one_where_postgres_finds_the_table(
    outbox: Outbox, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "Sales"')
        init_outbox(connection, OutboxName.parse('"Sales"."Out.box"'))
    assert TableLocation.find(OutboxHook(outbox='"Sales"."Out.box"')).dataset.name.endswith(".Sales.Out.box")
    with pytest.raises(OutboxMissingError, match="airflow-outbox init"):
        TableLocation.find(OutboxHook(outbox='"Out.box"'))
    made = connections(outbox.database, kafka)["postgres_default"]
    made["extra"] = {"options": '-c search_path="Sales",public'}
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(made))
    found = TableLocation.find(OutboxHook(outbox='"Out.box"'))
    assert (found.schema, found.default_schema) == ("Sales", "Sales")
    assert TableLocation.find(OutboxHook()).schema == "public"
