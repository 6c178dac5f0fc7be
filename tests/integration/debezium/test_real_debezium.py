"""Beside a real Debezium: the same inserts, compared record by record; and the cut-over, there and back, under load.

The comparison records what Debezium published when `tests/support/debezium_records.json` is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict
from support.debezium import (
    EVENTS,
    RECORDS,
    WRITERS,
    Writers,
    insert_rows,
    make_table,
    read_topics,
    recorded,
    stashed,
    wait_for,
)
from support.debezium_cases import CASES, PARTITIONS
from support.harvesting import COMMAND, Process

from airflow_outbox.cli import main
from airflow_outbox.debezium.operating import switch
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.connection import connect
from benchmarks.peers.connect import Connect
from benchmarks.peers.servers import Workspace

pytestmark = pytest.mark.long
PATIENCE = 180.0


@pytest.fixture(scope="module")
def connect_worker(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    """A running Connect, for all connectors of these tests."""
    folder = tmp_path_factory.mktemp("connect")
    worker = Connect(Workspace("", kafka.bootstrap, "unused", folder), {"offset.flush.interval.ms": "1000"})
    yield worker
    worker.child.end()


def server_of(database: str) -> dict[str, str]:
    server = conninfo_to_dict(database)
    return {
        "database.hostname": str(server["host"]),
        "database.port": str(server["port"]),
        "database.user": str(server["user"]),
        "database.password": str(server["password"]),
        "database.dbname": str(server["dbname"]),
    }


def make_topics(bootstrap: str, *topics: str) -> None:
    for topic in topics:
        Workspace("", bootstrap, "", Path()).make_topic(topic, partitions=PARTITIONS)


def test_every_record_is_the_same(logical_database: str, kafka: EmbeddedKafka, connect_worker: Connect) -> None:
    database = logical_database
    topics = [topic for case in CASES for topic in case.topics]
    make_topics(kafka.bootstrap, *topics, *(f"ours.{topic}" for topic in topics))
    with psycopg.connect(database, autocommit=True) as connection, connect(database, purpose="test") as own:
        outboxes = {case.name: make_table(connection, case) for case in CASES}
        for case in CASES:
            connection.execute(f"CREATE PUBLICATION published_{case.name} FOR TABLE {case.table}".encode())
            settings = {"data_source": database, "outbox_table": outboxes[case.name]}
            config = HarvestConfig.validated(
                {**settings, "kafka": {"bootstrap.servers": kafka.bootstrap}}, source="test"
            )
            switch(own, config, settings=case.connector(), table=None, wait=120, keeps_published=True)
            connect_worker.run({**case.connector(), **server_of(database)}, name=case.name)
        wait_for(lambda: active_slots(connection) == len(CASES), patience=PATIENCE)
        for case in CASES:
            insert_rows(connection, case)
        expected = {case.name: stashed(connection, outboxes[case.name]) for case in CASES}
    found = {}
    for case in CASES:
        wait_for(lambda: len(read_topics(kafka.bootstrap, case.topics)) >= len(expected[case.name]), patience=PATIENCE)  # noqa: B023
        found[case.name] = read_topics(kafka.bootstrap, case.topics)
    if not RECORDS.exists():
        lines = [
            f"  {json.dumps(name)}: [\n    "
            + ",\n    ".join(json.dumps(each.as_json(), ensure_ascii=False) for each in records)
            + "\n  ]"
            for name, records in found.items()
        ]
        RECORDS.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    differences = [
        f"{case.name}: Debezium {theirs and theirs.as_json()}, here {mine and mine.as_json()}"
        for case in CASES
        for theirs, mine in zip_longest(found[case.name], expected[case.name])
        if theirs != mine
    ]
    assert not differences, "\n".join(differences)
    assert found == {case.name: recorded(case) for case in CASES}, "what is recorded is not what Debezium publishes"


def active_slots(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    query = "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()"
    [count] = connection.execute(query).fetchone() or (0,)
    assert isinstance(count, int)
    return count


def test_there_and_back_beside_a_running_debezium(
    logical_database: str, kafka: EmbeddedKafka, connect_worker: Connect, tmp_path: Path
) -> None:
    """The procedure of docs/how-to/debezium.md, while applications write."""
    topic = "outbox.event.events"
    make_topics(kafka.bootstrap, topic, "__debezium-heartbeat.shop")
    connector, file = tmp_path / "connector.json", tmp_path / "outbox.yaml"
    settings = {**CASES[0].connector(), "table.include.list": "public.events", "slot.name": "moved"}
    settings |= {"publication.name": "moved", "heartbeat.interval.ms": "500"}
    connector.write_text(json.dumps({"name": "moved", "config": settings}))
    own = {"data_source": logical_database, "kafka": {"bootstrap.servers": kafka.bootstrap}}
    file.write_text(yaml.safe_dump(own))

    def run(*arguments: str, status: int = 0) -> None:
        done = CliRunner().invoke(main, [*arguments, "-f", str(file)])
        assert done.exit_code == status, done.output

    with psycopg.connect(logical_database, autocommit=True) as connection, ExitStack() as stack:
        connection.execute(EVENTS)
        connection.execute("CREATE PUBLICATION moved FOR TABLE events")
        connect_worker.run({**settings, **server_of(logical_database)}, name="moved")
        stack.callback(connect_worker.stop, name="moved")
        wait_for(lambda: active_slots(connection) == 1, patience=PATIENCE)
        run("init", "--key-type", "text", "--value-type", "text")
        run("pause")
        harvester = Process([*COMMAND, "harvest", "-f", str(file)])
        stack.callback(harvester.end)

        def drained() -> bool:
            checked = CliRunner().invoke(main, ["debezium", "check", "-f", str(file)])
            assert checked.exit_code in (0, 1), checked.output
            return checked.exit_code == 0

        def is_empty() -> bool:
            return connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)

        def switch_over() -> None:
            run("debezium", "init", "--connector", str(connector), "--wait", "120s")
            writers.go_on()
            wait_for(drained, patience=PATIENCE)
            run("resume")

        with Writers(logical_database) as writers:
            writers.go_on()
            switch_over()
            writers.go_on()
            connect_worker.pause(name="moved")
            run("debezium", "drop", "--wait", "120s")
            writers.go_on()
            wait_for(is_empty)
            connect_worker.resume(name="moved")
            writers.go_on()
            run("pause")
            switch_over()
            writers.go_on()
        wait_for(is_empty)
        wait_for(lambda: len(read_topics(kafka.bootstrap, [topic])) >= len(writers.committed))
        records = read_topics(kafka.bootstrap, [topic])
    rows = [int(each.value or b"") for each in records]
    assert sorted(rows) == sorted(writers.committed)
    for writer in range(WRITERS):
        mine = [row for row in rows if row % WRITERS == writer]
        assert mine == sorted(mine)
