"""`atomic` outboxes: a source transaction's records become visible together or not at all, also when leaders are killed
in between.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from faults.atomic import InterleavedLoad, SourceRecord, read_batches, torn
from faults.histories import Stage, told
from support.harvesting import SHORT_SESSION, make_outbox, wait_until

from airflow_outbox import OutboxRecord, Ticket, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

LIMITS = {"batch_records": 40, "max_in_flight_records": 120, **SHORT_SESSION}
"""So small that most windows are cut into several batches, and short enough that a successor leads soon."""


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


def judge(stage: Stage, load: InterleavedLoad, kafka: EmbeddedKafka) -> list[str]:
    batches = read_batches(stage.outbox, stage.names.ledger_topic, kafka)
    assert len(set(batches.values())) > 5, "so few batches that nothing was cut"
    return torn(load.committed, stage.outbox.committed(), batches)


@pytest.mark.parametrize("atomic", [True, False])
def test_a_source_transaction_is_in_one_kafka_transaction(stage: Stage, kafka: EmbeddedKafka, atomic: bool) -> None:
    """The judge finds torn ones where they may be torn."""
    stage.outbox.settings["atomic"] = atomic
    load = InterleavedLoad(stage.outbox, sizes=[1, 30, 3, 100, 7, 55])
    for _ in range(8):
        load.write_some()
    stage.drain()
    assert bool(judge(stage, load, kafka)) is not atomic


def test_also_when_leaders_are_killed(stage: Stage, kafka: EmbeddedKafka) -> None:
    load = InterleavedLoad(stage.outbox, sizes=[1, 30, 3, 100, 7, 55])
    load.start()
    leader = stage.harvester()
    for kill in range(3):
        leader.wait_for("view")
        before = stage.outbox.written()
        wait_until(lambda: stage.outbox.written() > before + 300)  # noqa: B023
        time.sleep(0.1 * kill)
        leader.popen.kill()
        leader.popen.wait()
        leader = stage.harvester()
    load.finish()
    stage.is_drained()
    leader.popen.terminate()
    leader.ends()
    assert not judge(stage, load, kafka)


def write(stage: Stage, transaction: int, *keys: str) -> Ticket:
    """A source transaction with a record for each of these keys."""
    records = [
        OutboxRecord(stage.outbox.topic, key, json.dumps([transaction, number, len(keys)]))
        for number, key in enumerate(keys)
    ]
    with psycopg.connect(stage.outbox.database) as connection:
        return stash(connection, records)


def visible(stage: Stage) -> Counter[int]:
    """How many records of each source transaction consumers see."""
    return Counter(SourceRecord.of(message).transaction for message in stage.outbox.committed())


def test_one_that_is_too_large_is_parked_whole_and_named(stage: Stage, kafka: EmbeddedKafka) -> None:
    """So is a later one that touches a key of it; others go on. With a higher limit both go out, each whole."""
    stage.outbox.settings["limits"]["max_transaction_records"] = 100
    large = write(stage, 0, *map(str, range(150)))
    held = write(stage, 1, "held", "7")
    write(stage, 2, "free", "other")
    process = stage.harvester()
    with told(process):
        wait_until(lambda: stage.outbox.left() == 0, doing="parking two, publishing one")
    assert visible(stage) == {2: 2}
    parked = json.loads(stage.command("status", "--output", "json"))["parked"]
    assert (parked["refused"], parked["waiting"]) == ({"too_large": 1}, 151)
    assert (parked["transactions_refused"], parked["transactions_held"]) == (1, 1)
    rows = json.loads(stage.command("parked list", "--limit", "1000", "--output", "json"))
    assert Counter(row["transaction_id"] for row in rows) == {large.transaction_id: 150, held.transaction_id: 2}
    [refused] = [row for row in rows if row["cause"] is not None]
    says = f"transaction {large.transaction_id} has 150 records, but max_transaction_records is 100"
    assert (refused["transaction_id"], refused["cause"]) == (large.transaction_id, "too_large")
    assert says in refused["reason"]

    process.popen.terminate()
    process.ends()
    stage.outbox.settings["limits"]["max_transaction_records"] = 150
    process = stage.harvester()
    stage.command("parked retry", "--all")
    with told(process):
        wait_until(lambda: visible(stage) == {0: 150, 1: 2, 2: 2}, doing="publishing what was parked")
    batches = read_batches(stage.outbox, stage.names.ledger_topic, kafka)
    assert torn({0: 150, 1: 2, 2: 2}, stage.outbox.committed(), batches) == []
    shared = [SourceRecord.of(message).transaction for message in stage.outbox.committed() if message.key() == b"7"]
    assert shared == [0, 1]
