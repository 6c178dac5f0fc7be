"""How fast records come while another session stays idle in transaction, so that no purged row can be removed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import yaml
from faults.histories import Stage
from support.harvesting import COMMAND, PATIENCE, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.timed

TRANSACTION = 20  # records
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


def test_harvesting_keeps_up_with_the_load(stage: Stage, request: pytest.FixtureRequest) -> None:
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
