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
from support.harvesting import make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

DEAD = {"short": 1_500_000, "long": 20_000_000}
PUBLISHED = {"short": 100_000, "long": 20_000_000}  # of the dead; the others were deleted by hand, before
STATEMENT_TIMEOUT = {"short": 0.2, "long": 2.0}  # a walk through all dead rows takes longer
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


def bury(stage: Stage, *, dead: int, published: int) -> None:
    """Leave so many dead rows. The last ones were published and purged."""
    insert(stage, dead - published)
    stage.execute("DELETE FROM outbox")
    insert(stage, published)
    process = stage.harvester(until="drained")
    process.ends(within=60 + published / 20_000)
    assert process.popen.returncode == 0, process.events[-5:]
    assert process.events[-1]["published"] == published


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
    form = request.config.getoption("--faults")
    patience = STATEMENT_TIMEOUT[form]
    with old_snapshot(stage):
        bury(stage, dead=DEAD[form], published=PUBLISHED[form])
        assert (seconds := walk(stage)) > patience, f"the walk takes {seconds} s, too short to show anything"
        stage.outbox.stash(100)
        limits = {"statement_timeout": patience, "take_over_timeout": patience}
        successor = stage.harvester(until="drained", limits=limits)
        stage.is_drained(within=15)
        with told(successor):
            assert successor.ends(within=10) < 10
            assert successor.popen.returncode == 0
            assert [event["error"] for event in successor.events if event["event"] == "error"] == []
