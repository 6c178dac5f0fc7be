"""Published records are durable: on the disk of Postgres whatever a role's settings say, and on that of its synchronous
standbys, so that a fail-over loses nothing that Kafka has.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from faults.histories import QUIET, Stage, has_caught_up, promote, replica
from support.harvesting import Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.errors import PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.check import examine
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.windows import WindowStatements
from airflow_outbox.values.fence import LedgerPosition

NAME = OutboxName.parse("outbox")
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = %s"


@pytest.fixture
def primary(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    """Nothing but commits brings its log to the disk."""
    folder = server_folder / f"primary-{uuid.uuid4().hex[:8]}"
    settings = {"wal_writer_delay": "10s", "autovacuum": "off", "checkpoint_timeout": "1h"}
    with EmbeddedPostgres(folder, fsync=False, settings=settings) as server:
        yield server
        server.kill()


@pytest.fixture
def standby(primary: EmbeddedPostgres, server_folder: Path) -> Iterator[EmbeddedPostgres]:
    with replica(primary, server_folder / f"standby-{uuid.uuid4().hex[:8]}") as server:
        yield server
        server.kill()


@pytest.fixture
def stage(
    primary: EmbeddedPostgres, standby: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Stage]:
    """An outbox on a primary whose commits wait for its standby."""
    database = primary.create_database("app")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    stage = Stage(outbox, primary, tmp_path)
    yield stage
    stage.close()


def leader(stage: Stage, **settings: Any) -> Process:
    """A harvester that has published records 0 to 9."""
    process = stage.harvester(**settings)
    process.wait_for("view")
    stage.outbox.stash(10)
    stage.is_drained()
    return process


def stash_locally(stage: Stage, start: int) -> None:
    """Ten records whose writer does not wait for standbys."""
    with psycopg.connect(stage.outbox.database) as connection:
        connection.execute("SET LOCAL synchronous_commit = local")
        insert(connection, stage, start)


def stash_and_be_cancelled(stage: Stage, start: int) -> None:
    """Ten records whose writer waits for standbys until somebody cancels that."""
    with (
        psycopg.connect(stage.outbox.database, application_name="writer") as connection,
        psycopg.connect(stage.outbox.database, autocommit=True) as operator,
    ):
        insert(connection, stage, start)
        committing = threading.Thread(target=connection.commit)
        committing.start()
        cancel(operator, "writer")
        committing.join()


def insert(connection: psycopg.Connection, stage: Stage, start: int) -> None:
    connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
        " SELECT %s, 'k' || n %% 10, n::text FROM generate_series(%s::integer, %s::integer) AS n",
        [stage.outbox.topic, start, start + 9],
    )


def cancel(operator: psycopg.Connection, application: str) -> None:
    found: list[int] = []

    def waits() -> bool:
        found[:] = [pid for (pid,) in operator.execute(WAITING, [application])]
        return bool(found)

    wait_until(waits, doing=f"waiting for {application} to wait")
    operator.execute("SELECT pg_cancel_backend(%s)", found)


def numbers(stage: Stage) -> list[int]:
    return sorted(number for _, number in stage.outbox.published())


@pytest.mark.parametrize("write", [stash_locally, stash_and_be_cancelled])
def test_what_only_the_primary_has_is_published_when_the_standby_has_it(
    stage: Stage, standby: EmbeddedPostgres, write: Any
) -> None:
    leader(stage)
    standby.stop()
    write(stage, 10)
    time.sleep(QUIET)
    assert numbers(stage) == list(range(10))
    assert stage.outbox.left() == 10
    standby.start()
    stage.is_drained()
    assert numbers(stage) == list(range(20))


def test_what_a_fail_over_loses_is_not_published(stage: Stage, standby: EmbeddedPostgres) -> None:
    leader(stage)
    standby.stop()
    stash_locally(stage, 10)
    time.sleep(QUIET)
    stage.server.kill()
    stage.close()
    standby.start()
    promote(standby)
    stage.use(standby, "app")
    stage.adopt()
    stage.outbox.stash(10, start=20)
    stage.drain()
    assert numbers(stage) == [*range(10), *range(20, 30)]


def test_the_wait_can_be_turned_off(stage: Stage, standby: EmbeddedPostgres) -> None:
    leader(stage, wait_for_standbys=False)
    standby.stop()
    stash_locally(stage, 10)
    stage.is_drained()
    assert numbers(stage) == list(range(20))
    settings = {**stage.outbox.settings, "wait_for_standbys": False}
    texts = [finding.text for finding in examine(HarvestConfig.validated(settings, source="test"))]
    assert any("synchronous_standby_names is *, and wait_for_standbys is off" in text for text in texts)


def test_a_wait_of_the_harvesters_own_that_is_cancelled_makes_nothing_durable(
    primary: EmbeddedPostgres, stage: Stage, standby: EmbeddedPostgres
) -> None:
    with (
        closing(OutboxTable(connect(stage.outbox.database, purpose="test"), NAME)) as table,
        psycopg.connect(stage.outbox.database, autocommit=True) as operator,
    ):
        wait_until(lambda: has_caught_up(primary, standby))
        standby.stop()
        failures: list[Exception] = []

        def flush() -> None:
            try:
                table.windows.flush(1)
            except PostgresError as error:
                failures.append(error)

        flushing = threading.Thread(target=flush)
        flushing.start()
        cancel(operator, "airflow-outbox test")
        flushing.join()
        assert "without its synchronous standbys" in str(failures)


def test_without_standbys_nothing_is_waited_for(primary: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page that was read tells that its records are on disk already, so no message is written behind them."""
    asked: list[str] = []

    def number(table: OutboxTable, statement: str, **parts: Any) -> int:
        asked.append(statement)
        return answer(table, statement, **parts)

    answer = WindowStatements._number
    monkeypatch.setattr(WindowStatements, "_number", number)
    database = primary.create_database("app")
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME)
        with closing(OutboxTable(connect(database, purpose="test"), NAME)) as table:
            connection.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k')")
            [(written,)] = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchall()
            assert table.windows.flush(int(written)) >= written
    assert asked == ["windows.flushed"]


@pytest.mark.parametrize("scope", ["ROLE eager", "DATABASE app", "ROLE eager IN DATABASE app"])
def test_what_the_harvester_has_committed_outlives_a_crash_whatever_its_role_has_set(
    primary: EmbeddedPostgres, scope: str
) -> None:
    database = primary.create_database("app")
    view = uuid4()
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME)
        connection.execute("CREATE ROLE eager LOGIN SUPERUSER PASSWORD 'secret'")
        connection.execute(f"ALTER {scope} SET synchronous_commit = off".encode())
    own = psycopg.conninfo.make_conninfo(database, user="eager", password="secret")
    with closing(OutboxTable(connect(own, purpose="test"), NAME)) as table:
        table.take_over(view, [], member="test")
        table.begin(view, delivery="exactly_once", witness=LedgerPosition(batch=7))
        primary.kill()
    primary.start()
    with psycopg.connect(database) as connection:
        known = connection.execute("SELECT view, witnessed_batch FROM outbox_shard JOIN outbox_ledger USING (shard)")
        assert known.fetchall() == [(view, 7)]
