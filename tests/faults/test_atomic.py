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
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from faults.atomic import InterleavedLoad, SourceRecord, read_batches, torn
from faults.histories import QUIET, Stage, told
from support.harvesting import SHORT_SESSION, make_outbox, make_topic, wait_until

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


def test_of_two_that_are_retried_the_one_that_is_still_refused_is_parked_again(stage: Stage) -> None:
    """A compacted topic refuses records without a key, and each transaction has one. Only one topic is mended. The
    process that retries has not seen either refused.
    """
    admin = AdminClient({"bootstrap.servers": stage.outbox.bootstrap})
    topics = [f"{stage.outbox.topic}-{number}" for number in range(2)]
    for topic in topics:
        make_topic({"bootstrap.servers": stage.outbox.bootstrap}, topic, config={"cleanup.policy": "compact"})
    stage.execute("ALTER TABLE outbox ALTER kafka_key DROP NOT NULL")
    for transaction, topic in enumerate(topics):
        with psycopg.connect(stage.outbox.database) as connection:
            for number, (where, key) in enumerate([(stage.outbox.topic, f"{transaction}"), (topic, None)]):
                connection.execute(
                    "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)",
                    (where, key, json.dumps([transaction, number, 2])),
                )
    process = stage.harvester()
    with told(process):
        wait_until(lambda: stage.outbox.left() == 0, doing="parking two")
    assert parked(stage) == {0: 2, 1: 2}
    process.popen.terminate()
    process.ends()
    mended = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topics[0], incremental_configs=[mended])
    admin.incremental_alter_configs([resource])[resource].result()
    stage.command("parked retry", "--all")
    process = stage.harvester()
    with told(process):
        asked = "SELECT FROM outbox_parked WHERE requested IS NOT NULL"
        wait_until(lambda: stage.outbox.query(asked) == [], doing="retrying two")
        wait_until(lambda: parked(stage) == {1: 2}, doing="publishing one")
        assert visible(stage) == {0: 1}
        [(cause, topic)] = stage.outbox.query("SELECT cause, kafka_topic FROM outbox_parked WHERE cause IS NOT NULL")
        assert (cause, topic) == ("refused", topics[1])
        for _ in range(2):  # so that all that it has told before is read
            told_before = len(process.events)
            wait_until(lambda: len(process.events) > told_before)  # noqa: B023
        views = process.own_views()
        write(stage, 2, "0", "other")
        wait_until(lambda: visible(stage) == {0: 1, 2: 2}, doing="another")
        time.sleep(QUIET)
        assert process.own_views() <= views, "the retry goes on and on"


def parked(stage: Stage) -> Counter[int]:
    """How many records of each source transaction are parked."""
    return Counter(json.loads(value)[0] for (value,) in stage.outbox.query("SELECT kafka_value FROM outbox_parked"))
