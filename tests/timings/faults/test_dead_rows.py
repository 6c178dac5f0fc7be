"""A take-over while an old snapshot keeps Postgres from removing what was purged: it comes through, and soon."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from faults.histories import Stage, told
from support.harvesting import PATIENCE, make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.alone

DELETED = {"short": 1_400_000, "long": 8_000_000}  # by hand
PUBLISHED = {"short": 100_000, "long": 20_000_000}  # afterwards
STATEMENT_TIMEOUT = {"short": 0.2, "long": 1.0}  # a walk through those that were deleted takes longer
TAKE_OVER_TIMEOUT = 60.0
LONG = 200.0
"""Seconds: on a busy machine any statement may take longer than such a limit, so several tries may fail."""
TRANSACTION = 250_000  # records


@pytest.fixture
def own_postgres(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    folder = server_folder / f"dead-{uuid.uuid4().hex[:8]}"
    with EmbeddedPostgres(folder, fsync=False, settings={"max_wal_size": "4GB"}) as server:
        yield server


@pytest.fixture
def stage(own_postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    outbox = make_outbox(own_postgres.create_database("app"), bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    stage = Stage(outbox, own_postgres, tmp_path)
    yield stage
    stage.close()


@contextmanager
def old_snapshot(stage: Stage) -> Iterator[None]:
    """A report that runs for hours, say."""
    with psycopg.connect(stage.outbox.database) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM outbox")
        yield


def publish(stage: Stage, records: int, *, within: float, **limits: float) -> None:
    """Let a member take over, publish what there is, and end.

    Limits that are shorter than a walk through the dead rows let it fail at every try, if it has to walk. A busy
    machine may exceed them once in a while, and the next try succeeds: only the end counts. (A purge that was given up
    may have been done; so what the member has counted may be less.)
    """
    before = stage.outbox.written()
    process = stage.harvester(until="drained", limits=limits)
    with told(process):
        stage.is_drained(within=within)
        process.ends()
        assert process.popen.returncode == 0
    assert stage.outbox.written() >= before + records


def insert(stage: Stage, records: int) -> None:
    with psycopg.connect(stage.outbox.database, autocommit=True) as connection:
        for start in range(0, records, TRANSACTION):
            connection.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
                " SELECT %s, 'k' || n %% 1000, n::text FROM generate_series(1, %s::integer) AS n",
                [stage.outbox.topic, min(TRANSACTION, records - start)],
            )


def walk(stage: Stage) -> float:
    """How long it takes to find the first record by id."""
    with psycopg.connect(stage.outbox.database) as connection:
        connection.execute("SET enable_seqscan = off")
        begun = time.monotonic()
        connection.execute("SELECT id FROM outbox ORDER BY id LIMIT 1")
        return time.monotonic() - begun


def test_a_take_over_comes_through_dead_rows(stage: Stage, request: pytest.FixtureRequest) -> None:
    """First they are of the window that is read first: that may take as long as a take-over, and not only as long as a
    statement. Then they are published and purged, and so before the watermark: they cost nothing.
    """
    form = request.config.getoption("--faults")
    patience = STATEMENT_TIMEOUT[form]
    stage.outbox.stash(10)
    publish(stage, 10, within=PATIENCE)
    with old_snapshot(stage):
        insert(stage, DELETED[form])
        stage.execute("DELETE FROM outbox")
        assert (seconds := min(walk(stage), walk(stage))) > patience, f"the walk takes {seconds} s: it shows nothing"
        stage.outbox.stash(100)
        publish(stage, 100, within=LONG, statement_timeout=patience, take_over_timeout=TAKE_OVER_TIMEOUT)
        insert(stage, PUBLISHED[form])
        publish(stage, PUBLISHED[form], within=LONG + PUBLISHED[form] / 20_000)
        stage.outbox.stash(100)
        publish(stage, 100, within=LONG, statement_timeout=patience, take_over_timeout=patience)
