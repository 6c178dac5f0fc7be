"""`atomic` outboxes: a source transaction's records become visible together or not at all, also when leaders are killed
in between.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from faults.atomic import InterleavedLoad, read_batches, torn
from faults.histories import Stage, errors_of
from harvesting import make_outbox, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.kafka import EmbeddedKafka
from airflow_outbox.demo.postgres import EmbeddedPostgres

LIMITS = {"batch_records": 40, "max_in_flight_records": 120, "heartbeat_timeout": 1.9}
"""So small that most windows are cut into several batches."""


@pytest.fixture
def stage(
    database: str, postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Stage]:
    outbox = make_outbox(
        database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", atomic=True, limits=dict(LIMITS)
    )
    stage = Stage(outbox, postgres, tmp_path)
    yield stage
    stage.close()


def judge(stage: Stage, load: InterleavedLoad) -> list[str]:
    batches = read_batches(stage.outbox, stage.names.ledger_topic)
    assert len(set(batches.values())) > 5, "so few batches that nothing was cut"
    return torn(load.committed, stage.outbox.committed(), batches)


@pytest.mark.parametrize("atomic", [True, False])
def test_a_source_transaction_is_in_one_kafka_transaction(stage: Stage, atomic: bool) -> None:
    """The judge finds torn ones where they may be torn."""
    stage.outbox.settings["atomic"] = atomic
    load = InterleavedLoad(stage.outbox, sizes=[1, 30, 3, 100, 7, 55])
    for _ in range(8):
        load.write_some()
    stage.drain()
    assert bool(judge(stage, load)) is not atomic


def test_also_when_leaders_are_killed(stage: Stage) -> None:
    load = InterleavedLoad(stage.outbox, sizes=[1, 30, 3, 100, 7, 55])
    load.start()
    leader = stage.harvester()
    for kill in range(3):
        leader.wait_for("view", within=20)
        published = len(stage.outbox.committed())
        wait_until(lambda seen=published: len(stage.outbox.committed()) > seen + 300, within=30)  # type: ignore[misc]
        time.sleep(0.1 * kill)
        leader.popen.kill()
        leader.popen.wait()
        leader = stage.harvester()
    load.finish()
    stage.is_drained(within=40)
    leader.popen.terminate()
    leader.ends(within=10)
    assert not judge(stage, load)


def test_one_that_is_too_large_is_held_and_named(stage: Stage) -> None:
    stage.outbox.settings["limits"]["max_transaction_records"] = 100
    with psycopg.connect(stage.outbox.database) as connection:
        ticket = stash(
            connection,
            [OutboxRecord(stage.outbox.topic, str(number), json.dumps([0, number, 150])) for number in range(150)],
        )
    process = stage.harvester()
    says = f"transaction {ticket.transaction_id} has 150 records in the outbox, and max_transaction_records is 100"
    wait_until(lambda: any(says in error for error in errors_of(process)), within=20, doing=says)
    assert stage.outbox.committed() == []
    assert stage.outbox.left() == 150
    process.popen.kill()
    stage.outbox.settings["limits"]["max_transaction_records"] = 150
    stage.drain()
    assert len(stage.outbox.committed()) == 150
    assert len(set(read_batches(stage.outbox, stage.names.ledger_topic).values())) == 1
