"""Another session stays idle in transaction for the whole run, so that no purged row can be removed from the table."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from faults.histories import Stage
from support.harvesting import COMMAND, make_outbox, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

TRANSACTION = 20  # records
RATE = 2_000  # records/s, or as many as the machine lets
WRITTEN = "SELECT coalesce(pg_sequence_last_value('outbox_id_seq'), 0)"
SINGLES = 40
BLOCKS = 20
"""What deeper indexes may add; the dead rows of the short form fill hundreds."""
STATISTICS = 1.5
"""Seconds after which each session has told its counts."""


RECORDS = {"short": 48_000, "long": 3_600_000}


@pytest.fixture
def stage(
    database: str, postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Stage]:
    stage = Stage(make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data"), postgres, tmp_path)
    yield stage
    stage.close()


def blocks_of_a_statement(stage: Stage) -> float:
    """How many blocks each statement looks at while single records come, one after the other.

    However busy the machine is, there is nothing else to do. A walk through dead rows would look at all of them; so
    nothing is counted here meanwhile.
    """

    def published() -> int:
        [(records,)] = stage.outbox.query("SELECT sum(published) FROM outbox_shard")
        return int(records)

    def statistics() -> tuple[int, int]:
        time.sleep(STATISTICS)
        [found] = stage.outbox.query(
            "SELECT xact_commit, blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"
        )
        return found

    wanted = published() + SINGLES
    statements, blocks = statistics()
    with psycopg.connect(stage.outbox.database, autocommit=True) as connection:
        for _ in range(SINGLES):
            stash(connection, OutboxRecord(stage.outbox.topic, "single", "-1"))
            time.sleep(0.05)
    wait_until(lambda: published() >= wanted)
    statements_then, blocks_then = statistics()
    return (blocks_then - blocks) / (statements_then - statements)


def pump(stage: Stage, records: int) -> None:
    """Write so many in small transactions."""
    file = stage.folder / "load.yaml"
    file.write_text(yaml.safe_dump(stage.outbox.settings))
    load = [*COMMAND, "pump", "-f", str(file), "--topic", stage.outbox.topic, "--rate", str(RATE)]
    load += ["--records", str(records), "--transaction", str(TRANSACTION)]
    pumping = subprocess.Popen(load, stdout=subprocess.DEVNULL)
    try:
        while pumping.poll() is None:
            written = stage.outbox.query(WRITTEN)
            wait_until(lambda: pumping.poll() is not None or stage.outbox.query(WRITTEN) > written)  # noqa: B023
    finally:
        pumping.kill()
        pumping.wait()
    assert pumping.returncode == 0


def status(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stage.command("status", "--output", "json"))
    return found


def test_a_session_that_is_idle_in_transaction(stage: Stage, request: pytest.FixtureRequest) -> None:
    records = RECORDS[request.config.getoption("--faults")]
    stage.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")  # it could do nothing, and takes time for that
    stage.harvester().wait_for("view")
    with psycopg.connect(stage.outbox.database, application_name="forgetful") as idle:
        idle.execute("SELECT pg_current_xact_id()")
        opened = time.monotonic()
        without_dead_rows = blocks_of_a_statement(stage)
        pump(stage, records)
        stage.is_drained()
        with_dead_rows = blocks_of_a_statement(stage)
        print(f"{without_dead_rows=} {with_dead_rows=}")
        assert with_dead_rows <= 2 * without_dead_rows + BLOCKS
        wait_until(lambda: status(stage)["dead_rows"] >= 0.9 * records)
        open_for = time.monotonic() - opened
        holder = status(stage)["oldest_holder"]
        assert (holder["kind"], holder["pid"]) == ("session", idle.info.backend_pid)
        assert holder["name"] == "postgres, forgetful, idle in transaction"
        assert holder["age"] >= open_for - 1  # in whole seconds
        said = " ".join(stage.command("status").split())
        assert f"must keep the latest ones for the session with process id {idle.info.backend_pid} (postgres, " in said
    left = status(stage)["oldest_holder"]  # by chance another one, of a moment
    assert left is None or left["pid"] != holder["pid"]
    numbers = [int(message.value().split()[0]) for message in stage.outbox.committed()]
    assert sorted(number for number in numbers if number >= 0) == list(range(records))
