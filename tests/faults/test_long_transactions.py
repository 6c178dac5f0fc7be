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
from faults.scene import moment_of
from support.harvesting import COMMAND, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.alone

TRANSACTION = 20  # records


@dataclass(frozen=True, slots=True)
class Form:
    """How long the run lasts, its load, and for how long it is sampled at its beginning and at its end."""

    seconds: int
    rate: int  # records/s
    sample: float  # seconds


FORMS = {"short": Form(24, 4_000, 6.0), "long": Form(1800, 2_000, 12.0)}


@pytest.fixture
def stage(
    database: str, postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Stage]:
    stage = Stage(make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data"), postgres, tmp_path)
    yield stage
    stage.close()


@dataclass(frozen=True, slots=True)
class Sample:
    """What a stretch of the run was like: records/s, and statements/s of all sessions but the writer's."""

    records: float
    statements: float


def sample(stage: Stage, process: Process, seconds: float) -> Sample:
    def look() -> tuple[float, int, int, int]:
        since = len(process.events)
        wait_until(lambda: any(event["event"] == "progress" for event in process.events[since:]))
        progress = process.events[-1]
        [(statements, written)] = stage.outbox.query(
            "SELECT xact_commit, pg_sequence_last_value('outbox_id_seq') "
            "FROM pg_stat_database WHERE datname = current_database()"
        )
        return moment_of(progress), progress["published"], statements, written

    before = look()
    time.sleep(seconds)
    seconds, records, statements, written = (after - earlier for after, earlier in zip(look(), before, strict=True))
    return Sample(records / seconds, (statements - written / TRANSACTION) / seconds)


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
    process = stage.harvester()
    process.wait_for("view")
    with psycopg.connect(stage.outbox.database, application_name="forgetful") as idle:
        idle.execute("SELECT pg_current_xact_id()")
        began = time.monotonic()
        pumping = subprocess.Popen(load, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: stage.outbox.query("SELECT max(published) FROM outbox_shard")[0][0] > 0)
            first = sample(stage, process, form.sample)
            time.sleep(max(0.0, form.seconds - 1.5 * form.sample - (time.monotonic() - began)))
            last = sample(stage, process, form.sample)
            assert pumping.wait(30 + form.seconds / 10) == 0
        finally:
            pumping.kill()
            pumping.wait()
        stage.is_drained()
        print(f"{first=} {last=}")
        assert first.records > 0.8 * form.rate, "the load is not what it should be"
        assert last.records >= 0.9 * first.records
        assert last.statements <= 1.2 * first.statements
        wait_until(lambda: status(stage)["dead_rows"] >= 0.9 * records)
        holder = status(stage)["oldest_holder"]
        assert (holder["kind"], holder["pid"]) == ("session", idle.info.backend_pid)
        assert holder["name"] == "postgres, forgetful, idle in transaction"
        assert form.seconds <= holder["age"] <= time.monotonic() - began + 5
        said = " ".join(stage.command("status").split())
        assert f"must keep the latest ones for the session with process id {idle.info.backend_pid} (postgres, " in said
    left = status(stage)["oldest_holder"]  # by chance another one, of a moment
    assert left is None or left["pid"] != holder["pid"]
    numbers = [int(message.value().split()[0]) for message in stage.outbox.committed()]
    assert sorted(numbers) == list(range(records))
