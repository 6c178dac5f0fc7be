"""Another session stays idle in transaction for the whole run, so that no purged row can be removed from the table."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from faults.histories import Stage
from support.harvesting import COMMAND, PATIENCE, make_outbox, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.timed

TRANSACTION = 20  # records
SINGLES = 40
BLOCKS = 20
"""What deeper indexes may add; the dead rows of the short form fill hundreds."""
STATISTICS = 1.5
"""Seconds after which each session has told its counts."""
LOOKS = 500
"""Statements/s that look for more, however little is written."""


@dataclass(frozen=True, slots=True)
class Form:
    """How long the run lasts, and its load."""

    seconds: int
    rate: int  # records/s


FORMS = {"short": Form(24, 2_000), "long": Form(1800, 2_000)}


@pytest.fixture
def stage(
    database: str, postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Stage]:
    stage = Stage(make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data"), postgres, tmp_path)
    yield stage
    stage.close()


@dataclass(frozen=True, slots=True)
class Counts:
    """All that had happened by a moment; or, as the difference of two, in the stretch between them.

    `statements` are those of all sessions but the writer's. `blocks` are those that all sessions have looked at.
    """

    written: int
    published: int
    statements: float
    blocks: int

    def since(self, earlier: Counts) -> Counts:
        return Counts(
            self.written - earlier.written,
            self.published - earlier.published,
            self.statements - earlier.statements,
            self.blocks - earlier.blocks,
        )


def falls_behind(found: Counts) -> bool:
    return found.published < 0.75 * found.written


def counts(stage: Stage) -> Counts:
    """All of one moment, but that sessions count their statements and blocks up to a second late."""
    [(statements, blocks, written, left)] = stage.outbox.query(
        "SELECT xact_commit, blks_hit + blks_read, coalesce(pg_sequence_last_value('outbox_id_seq'), 0),"
        " (SELECT count(*) FROM outbox) FROM pg_stat_database WHERE datname = current_database()"
    )
    return Counts(written, written - left, statements - written / TRANSACTION, blocks)


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


def status(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stage.command("status", "--output", "json"))
    return found


def test_a_session_that_is_idle_in_transaction(stage: Stage, request: pytest.FixtureRequest) -> None:
    form = FORMS[request.config.getoption("--faults")]
    file = stage.folder / "load.yaml"
    file.write_text(yaml.safe_dump(stage.outbox.settings))
    records = form.rate * form.seconds
    load = [
        *(*COMMAND, "pump", "-f", str(file), "--topic", stage.outbox.topic, "--rate", str(form.rate)),
        *("--records", str(records), "--transaction", str(TRANSACTION)),
    ]
    stage.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")  # it could do nothing, and takes time for that
    stage.harvester().wait_for("view")
    with psycopg.connect(stage.outbox.database, application_name="forgetful") as idle:
        idle.execute("SELECT pg_current_xact_id()")
        opened = time.monotonic()
        without_dead_rows = blocks_of_a_statement(stage)
        began = time.monotonic()
        pumping = subprocess.Popen(load, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: stage.outbox.query("SELECT max(published) FROM outbox_shard")[0][0] > 0)
            first = counts(stage)
            time.sleep(max(0.0, 0.8 * form.seconds - (time.monotonic() - began)))
            found = counts(stage).since(first)
            while falls_behind(found) and pumping.poll() is None:  # a busy machine may hold it up for a moment
                time.sleep(0.1)
                found = counts(stage).since(first)
            assert pumping.wait(PATIENCE + form.seconds) == 0
        finally:
            pumping.kill()
            pumping.wait()
        stage.is_drained()
        print(f"{found=}")
        assert found.written > 0.1 * records, "the load is not what it should be"
        # A busy machine slows the writer, too; so it is compared with what was written meanwhile.
        assert not falls_behind(found)
        assert found.statements <= 0.5 * found.published + LOOKS * form.seconds
        with_dead_rows = blocks_of_a_statement(stage)
        print(f"{without_dead_rows=} {with_dead_rows=}")
        assert with_dead_rows <= 2 * without_dead_rows + BLOCKS
        wait_until(lambda: status(stage)["dead_rows"] >= 0.9 * records)
        holder = status(stage)["oldest_holder"]
        assert (holder["kind"], holder["pid"]) == ("session", idle.info.backend_pid)
        assert holder["name"] == "postgres, forgetful, idle in transaction"
        assert form.seconds <= holder["age"] <= time.monotonic() - opened + 5
        said = " ".join(stage.command("status").split())
        assert f"must keep the latest ones for the session with process id {idle.info.backend_pid} (postgres, " in said
    left = status(stage)["oldest_holder"]  # by chance another one, of a moment
    assert left is None or left["pid"] != holder["pid"]
    numbers = [int(message.value().split()[0]) for message in stage.outbox.committed()]
    assert sorted(number for number in numbers if number >= 0) == list(range(records))
