"""Transactions that were visible before they were on disk (`synchronous_commit = off`), and that a crash of Postgres
undoes: they must not be in Kafka; and the records that get their ids and transaction ids afterwards must be.

Processes that flush Postgres' log by themselves are stopped, so that the crash finds something to undo.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from faults.histories import Stage
from faults.processes import go_on, is_stopped
from faults.zombie import command
from support.harvesting import Process, make_outbox, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

SETTINGS = {
    "wal_writer_delay": "10s",
    "wal_buffers": "64MB",
    "bgwriter_lru_maxpages": "0",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
}
BEFORE = 100
SIZE = 100  # records a transaction: many more than a sequence skips after a crash


@pytest.fixture
def own_postgres(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    folder = server_folder / f"lossy-{uuid.uuid4().hex[:8]}"
    with EmbeddedPostgres(folder, fsync=False, settings=SETTINGS) as server:
        yield server
        server.kill()


@pytest.fixture
def stage(own_postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    outbox = make_outbox(own_postgres.create_database("app"), bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    stage = Stage(outbox, own_postgres, tmp_path)
    outbox.stash(BEFORE)
    stage.drain()
    yield stage
    stage.close()


def stop_the_wal_writer(stage: Stage) -> None:
    [(pid,)] = stage.outbox.query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(pid, signal.SIGSTOP)


def end_sessions(stage: Stage) -> None:
    """End the leader's sessions, as the crash will: a statement that it has sent might bring the log to the disk."""
    sessions = "pg_stat_activity WHERE application_name LIKE 'airflow-outbox%' AND datname = current_database()"
    stage.outbox.query(f"SELECT pg_terminate_backend(pid) FROM {sessions}")
    wait_until(lambda: stage.outbox.query(f"SELECT FROM {sessions}") == [])


def visible(stage: Stage) -> dict[int, tuple[int, str]]:
    """Number, transaction and id of each record."""
    found = stage.outbox.query("SELECT kafka_value, id, transaction_id::text FROM outbox")
    return {int(value): (number, transaction) for value, number, transaction in found}


def write(stage: Stage, connection: psycopg.Connection, start: int) -> range:
    """A transaction with so many numbers."""
    numbers = range(start, start + SIZE)
    stash(connection, [OutboxRecord(stage.outbox.topic, f"k{number % 10}", str(number)) for number in numbers])
    connection.commit()
    return numbers


def lose(stage: Stage, leader: Process) -> tuple[list[int], dict[int, tuple[int, str]]]:
    """Write asynchronously until the leader, which has read some of that, stops at its point; then crash.

    Returns the numbers that were written, and what of them was visible and is lost.
    """
    stop_the_wal_writer(stage)
    os.kill(leader.popen.pid, signal.SIGUSR1)
    written: list[int] = []
    with psycopg.connect(stage.outbox.database) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.commit()
        while not is_stopped(leader):
            written += write(stage, connection, BEFORE + len(written))
            time.sleep(0.01)
        end_sessions(stage)
        for _ in range(3):  # nothing flushes any more
            written += write(stage, connection, BEFORE + len(written))
    before = visible(stage)
    stage.server.kill()
    stage.server.start()
    after = visible(stage)
    lost = {number: place for number, place in before.items() if number not in after}
    return written, lost


def crash(stage: Stage, stop: str, *, without: tuple[str, ...] = ()) -> tuple[list[int], dict[int, tuple[int, str]]]:
    """Returns the numbers that are committed for good, and what was lost; the leader goes on."""
    leader = stage.harvester(command=command(stop=stop, without=without))
    leader.wait_for("view")
    stage.is_drained()  # what it reads next is not on disk
    written, lost = lose(stage, leader)
    assert lost, "the crash has undone nothing"
    instead: list[int] = []
    with psycopg.connect(stage.outbox.database) as connection:
        for _ in range(5):
            instead += write(stage, connection, 10**6 + len(instead))
    again = visible(stage).values()
    for lost_ones, new_ones in zip(zip(*lost.values(), strict=True), zip(*again, strict=True), strict=True):
        assert set(lost_ones) & set(new_ones), "no id, or no transaction id, was given out again"
    go_on(leader)
    kept = [number for number in written if number not in lost]
    return [*range(BEFORE), *kept, *instead], lost


def test_what_a_crash_undoes_is_not_published_and_what_comes_instead_is(stage: Stage) -> None:
    kept, _ = crash(stage, "flush")
    stage.is_drained()
    assert sorted(number for _, number in stage.outbox.published()) == sorted(kept)


@pytest.mark.timed  # the leader has to publish what is lost before anything brings it to the disk
def test_without_the_wait_for_the_disk_kafka_has_what_postgres_has_not(stage: Stage) -> None:
    """The ledger then speaks of what has not happened, so that this, at least, is noticed."""
    kept, lost = crash(stage, "purge", without=("flush",))
    published = {number for _, number in stage.outbox.published()}
    assert published & lost.keys()
    assert not published >= set(kept)
    stage.refuses(stage.started[-1], "run `airflow-outbox adopt`")
