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

SCRIPT = Path(__file__).with_name("lineage") / "tasks.py"
Datasets = set[tuple[str, str]]


def run(home: Path, outbox: Outbox) -> list[dict[str, Any]]:
    """Run the Dag in an Airflow of its own, to its end; the events of its tasks, oldest first."""
    told = home / "lineage.json"
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(SCRIPT.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "file", "log_file_path": str(told), "append": True}),
        "OUTBOX_TESTS_TOPIC": outbox.topic,
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
    airflow = str(Path(sys.executable).with_name("airflow"))
    subprocess.run([airflow, "db", "migrate"], env=others | settings, check=True, capture_output=True)
    ran = subprocess.run([sys.executable, str(SCRIPT)], env=others | settings, capture_output=True, text=True)
    assert told.exists(), ran.stdout + ran.stderr
    return [json.loads(line) for line in told.read_text().splitlines()]


def datasets(events: list[dict[str, Any]], task: str, state: str, side: str) -> list[Datasets]:
    """The data that each event of a task in a state names."""
    return [
        {(dataset["namespace"], dataset["name"]) for dataset in event[side]}
        for event in events
        if (event["job"]["name"], event["eventType"]) == (f"tasks.{task}", state)
    ]


def test_tables_come_in_and_topics_go_out(outbox: Outbox, tmp_path: Path) -> None:
    outbox.query("CREATE TABLE business (run TEXT); CREATE TABLE prices (price TEXT)")
    events = run(tmp_path, outbox)
    server = conninfo_to_dict(outbox.database)
    stored, business, prices = (
        (f"postgres://{server['host']}:{server['port']}", f"{server['dbname']}.public.{table}")
        for table in ("outbox", "business", "prices")
    )
    topic = (f"kafka://{outbox.bootstrap}", outbox.topic)

    for state in ("START", "COMPLETE"):
        assert datasets(events, "stash", state, "inputs") == [{prices}]
        assert datasets(events, "stash", state, "outputs") == [{stored, business, topic}]
        for sensor in ("first", "published", "second"):
            inputs = datasets(events, sensor, state, "inputs")
            assert inputs, f"no {state} of {sensor}"
            assert all(each == {stored} for each in inputs)
    assert datasets(events, "first", "START", "outputs")[0] == set()  # nothing was ever published
    assert datasets(events, "first", "COMPLETE", "outputs") == [{topic}]
    assert datasets(events, "published", "COMPLETE", "outputs") == [set()]
    assert datasets(events, "second", "START", "outputs") == [{topic}, {topic}]  # it is deferred, and goes on

    for task, states in {"submits": ("START", "COMPLETE"), "fails": ("START", "FAIL")}.items():
        for state in states:
            assert datasets(events, task, state, "inputs") == [{("file", "/data/flights.csv")}]
            assert datasets(events, task, state, "outputs") == [{stored}]


@contextmanager
def acting_as(role: str, *, may: tuple[str, ...], outbox: Outbox, kafka: EmbeddedKafka) -> Iterator[None]:
    """Let the Postgres connection be one of a role that has only these rights."""
    with psycopg.connect(outbox.database, autocommit=True) as owner, pytest.MonkeyPatch.context() as patch:
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
        for right in may:
            for statement in grant_statements(owner, OutboxName.parse(outbox.name), right, role):
                owner.execute(statement.encode())
        made = connections(outbox.database, kafka, login=role, password="secret")["postgres_default"]
        patch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(made))
        try:
            yield
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_role_that_may_do_its_task_may_ask_for_its_lineage(outbox: Outbox, kafka: EmbeddedKafka) -> None:
    role = f"lineage_{outbox.topic.split('-')[1]}"
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
