"""The pages for the second day, followed to the letter on real servers; only the addresses are others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.following import BOOTSTRAP, DATA_SOURCE, Followed
from support.harvesting import COMMAND, PARTITIONS, PATIENCE, Outbox, Process, make_outbox, make_topic, wait_until
from support.parking import park_by_hand

from airflow_outbox import Ticket, published
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import SCHEMA_VERSION

VERSION_6 = (Path(__file__).parents[1] / "support" / "version_6.sql").read_text("utf-8")
MONTH = 30 * 86400.0
ONCE = {f"k{key}": list(range(key, 20, 10)) for key in range(10)}
Other = Callable[[str], dict[str, str]]


@pytest.fixture
def other_database(database: str) -> Iterator[Other]:
    """What stands for another database of a page, by its name there; the database is dropped in the end."""
    made = []

    def other(there: str) -> dict[str, str]:
        name = f"{conninfo_to_dict(database)['dbname']}_{len(made)}"
        made.append(name)
        return {DATA_SOURCE.replace("app ", f"{there} ", 1): make_conninfo(database, dbname=name), there: name}

    yield other
    with psycopg.connect(database, autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


def rows(database: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def harvest(folder: Path, name: str = "outbox.yaml") -> Process:
    return Process([*COMMAND, "harvest", "-f", str(folder / name)])


def test_an_outbox_of_an_older_release_is_upgraded_with_a_backlog_and_parked_records(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    outbox = Outbox(database, kafka.bootstrap, topic_prefix + "data")
    make_topic({"bootstrap.servers": kafka.bootstrap}, outbox.topic)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(VERSION_6.encode())
        park_by_hand(connection, "k3", topic=outbox.topic, value="-1")
        with connection.transaction():
            connection.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
                " SELECT %s, 'k' || mod(n, 10), n FROM generate_series(0, 19) AS n",
                [outbox.topic],
            )
            found = connection.execute("SELECT outbox_id, incarnation, pg_current_xact_id()::text FROM outbox_leader")
            [(outbox_id, incarnation, transaction)] = found.fetchall()
    here = {DATA_SOURCE: database, BOOTSTRAP: kafka.bootstrap}
    upgrading = {"The same schema version", "A newer schema version"}
    done = Followed("how-to/upgrade.md", tmp_path, database, here).follow(sections=upgrading)
    assert [text.split()[0] for text in done] == ["pg_dump", "airflow-outbox", "airflow-outbox"]
    assert outbox.query("SELECT schema_version FROM outbox_state") == [(SCHEMA_VERSION,)]
    # Behind the parked record, those of its key wait, too.
    assert outbox.by_key() == {key: numbers for key, numbers in ONCE.items() if key != "k3"}
    parked = "SELECT kafka_key, kafka_value FROM outbox_parked ORDER BY id"
    assert outbox.query(parked) == [("k3", "-1"), ("k3", "3"), ("k3", "13")]
    ticket = Ticket(outbox_id=outbox_id, incarnation=incarnation, transaction_id=int(transaction))
    with psycopg.connect(database, autocommit=True) as connection:
        assert not published(connection, ticket)
        assert ParkedRequests(connection, OutboxName.parse("outbox")).ask("retry", Choice(everything=True)) == 3
        member = harvest(tmp_path)
        try:
            wait_until(lambda: outbox.query(parked) == [])
            wait_until(lambda: published(connection, ticket))
        finally:
            member.end()
    assert outbox.by_key() == {**ONCE, "k3": [-1, 3, 13]}


def test_nothing_is_left_of_an_outbox_that_was_uninstalled(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"), archive_retention=MONTH, stash_function=True)
    outbox.stash(20)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    here = {DATA_SOURCE: database, BOOTSTRAP: kafka.bootstrap}

    def has_ended() -> None:
        """The harvester has left its group, also on a broker that was busy when it left."""
        group = "airflow-outbox." + json.loads((tmp_path / "status.json").read_text())["outbox_id"]

        def members() -> int:
            return len(admin.describe_consumer_groups([group])[group].result().members)

        wait_until(lambda: members() == 0)

    before = {"python remove_from_kafka.py": has_ended}
    Followed("how-to/uninstall.md", tmp_path, database, here).follow(before=before)
    assert outbox.by_key() == ONCE
    name = "airflow-outbox." + json.loads((tmp_path / "status.json").read_text())["outbox_id"]
    wait_until(lambda: not any(topic.startswith(name) for topic in admin.list_topics(timeout=PATIENCE).topics))
    assert name not in {group.group_id for group in admin.list_consumer_groups().result().valid}
    commands = (tmp_path / "remove-acls.sh").read_text().splitlines()
    assert commands
    assert all(" --remove --force " in command and " --add " not in command for command in commands)
    assert rows(database, "SELECT relname FROM pg_class WHERE relname LIKE '%outbox%'") == []
    assert rows(database, "SELECT proname FROM pg_proc WHERE proname LIKE 'outbox%'") == []
    assert rows(database, "SELECT nspname FROM pg_namespace WHERE nspname LIKE '%outbox%'") == []


def test_a_restored_database_is_adopted_and_misses_nothing(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path, other_database: Other
) -> None:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    outbox.stash(10)
    here = {**other_database("app_restored"), DATA_SOURCE: database, BOOTSTRAP: kafka.bootstrap}
    restored = next(iter(here.values()))
    drained = Process([*COMMAND, "harvest", "-f", write(outbox, tmp_path), "--until", "drained"])
    drained.ends()
    drained.end()
    outbox.stash(10, start=10)

    def it_halts() -> None:
        member = harvest(tmp_path, "restored.yaml")
        try:
            wait_until(lambda: rows(restored, "SELECT FROM outbox_state WHERE halted IS NOT NULL") != [])
            member.popen.terminate()
            member.ends()
        finally:
            member.end()

    Followed("how-to/back-up.md", tmp_path, database, here).follow(before={"airflow-outbox adopt": it_halts})
    # Those that waited when the dump was made come twice, the others once.
    assert outbox.by_key() == {f"k{key}": [key, 10 + key, 10 + key] for key in range(10)}
    assert rows(database, "SELECT incarnation FROM outbox_state") == [(1,)]
    assert rows(restored, "SELECT incarnation FROM outbox_state") == [(2,)]


def write(outbox: Outbox, folder: Path) -> str:
    """A configuration file for an outbox."""
    file = folder / "first.yaml"
    file.write_text(f"data_source: {outbox.database}\nkafka:\n  bootstrap.servers: {outbox.bootstrap}\n")
    return str(file)


@pytest.mark.long
def test_an_outbox_moves_to_another_database(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path, other_database: Other
) -> None:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    outbox.stash(10)
    here = {**other_database("app_moved"), DATA_SOURCE: database, BOOTSTRAP: kafka.bootstrap}
    moved = Outbox(next(iter(here.values())), kafka.bootstrap, outbox.topic)
    Followed("how-to/move.md", tmp_path, database, here).follow(sections={"Another database"})
    assert outbox.by_key() == {f"k{key}": [key] for key in range(10)}
    member = harvest(tmp_path, "elsewhere.yaml")
    try:
        moved.stash(10, start=10)
        wait_until(lambda: moved.left() == 0)
    finally:
        member.end()
    assert outbox.by_key() == ONCE


def test_two_outboxes_of_one_database_do_not_meet(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    reach = (database, kafka.bootstrap, topic_prefix + "data")
    orders, billing = (Outbox(*reach, {"outbox_table": name}) for name in ("orders_outbox", "billing.outbox"))
    make_topic({"bootstrap.servers": kafka.bootstrap}, orders.topic)

    def stash() -> None:
        orders.stash(10)
        billing.stash(10, start=10)

    here = {DATA_SOURCE: database, BOOTSTRAP: kafka.bootstrap}
    followed = Followed("how-to/several-outboxes.md", tmp_path, database, here)
    followed.follow(before={"--until drained": stash})
    assert orders.left() == billing.left() == 0
    assert {key: sorted(numbers) for key, numbers in orders.by_key().items()} == ONCE


@pytest.mark.long
def test_an_outbox_moves_to_another_kafka(
    database: str, kafka: EmbeddedKafka, server_folder: Path, kafka_classpath: str, topic_prefix: str, tmp_path: Path
) -> None:
    with EmbeddedKafka(server_folder / f"{topic_prefix}moved", classpath=kafka_classpath) as other:
        outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
        make_topic({"bootstrap.servers": other.bootstrap}, outbox.topic, partitions=PARTITIONS)
        outbox.stash(10)
        here = {DATA_SOURCE: database, BOOTSTRAP: kafka.bootstrap, "127.0.0.1:9192": other.bootstrap}
        Followed("how-to/move.md", tmp_path, database, here).follow(
            sections={"Another Kafka"}, before={"init -f moved.yaml": lambda: outbox.stash(10, start=10)}
        )
        assert outbox.by_key() == {f"k{key}": [key] for key in range(10)}
        elsewhere = Outbox(database, other.bootstrap, outbox.topic)
        assert elsewhere.by_key() == {f"k{key}": [10 + key] for key in range(10)}
        other.kill()


def test_harvesting_goes_on_beside_a_dbas_maintenance(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    outbox = make_outbox(
        database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", purge="archive", archive_retention=MONTH
    )
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"), archive_retention=MONTH)
    day = datetime.now(UTC) + timedelta(days=3)
    here = {DATA_SOURCE: database, BOOTSTRAP: kafka.bootstrap, "20300101": f"{day:%Y%m%d}"}
    followed = Followed("how-to/maintenance.md", tmp_path, database, here)
    members: list[Process] = []
    stashed, over = 0, threading.Event()

    def stash() -> None:
        """More is stashed before each statement, and comes out after it."""
        nonlocal stashed
        outbox.stash(20, start=stashed)
        stashed += 20
        if not members:
            members.append(harvest(tmp_path))

    def write_on() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not over.wait(0.01):
                connection.execute(
                    "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'other', '-1')",
                    [outbox.topic],
                )

    def is_out() -> bool:
        return outbox.query("SELECT count(*) FROM outbox_archive WHERE kafka_key <> 'other'") == [(stashed,)]

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        done = followed.follow(before=dict.fromkeys(("pause", "ALTER", "VACUUM", "REINDEX"), stash))
        wait_until(is_out, doing=lambda: f"{members[0].events[-20:]}")
        over.set()
        writer.join()
        wait_until(lambda: outbox.left() == 0)
    finally:
        over.set()
        writer.join()
        for member in members:
            member.end()
    assert len(done) == 8
    by_key = outbox.by_key()
    others = len(by_key.pop("other"))
    assert outbox.query("SELECT count(*) FROM outbox_archive WHERE kafka_key = 'other'") == [(others,)]
    assert by_key == {f"k{key}": list(range(key, stashed, 10)) for key in range(10)}
