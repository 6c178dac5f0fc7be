"""`atomic` outboxes with source transactions that are long or slow: each comes out in bounded time, or is parked by
name, and others go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from faults.atomic import SourceRecord, read_batches, torn
from faults.frames import Api
from faults.histories import Stage, errors_of, told
from faults.late import LateScene
from faults.treatments import Delay
from support.harvesting import make_outbox, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

TRANSACTIONS, SIZE = {"short": 600, "long": 2_000}, 100
PAGE = 5_000
"""Records that are held back, at most: less than a tenth of the window, which is what has the keys of a transaction."""
FILL = """
CREATE PROCEDURE fill(topic text, transactions integer, size integer) LANGUAGE plpgsql AS $$
BEGIN
    FOR number IN 1..transactions LOOP
        INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
        SELECT topic, 'k' || number % 10 * size + place, json_build_array(number, place, size)::text
        FROM generate_series(0, size - 1) AS place;
        COMMIT;
    END LOOP;
END $$
"""
SLOW = 1.5
"""Seconds that each Produce takes."""
TRANSACTION_TIMEOUT = 8
"""Seconds: less than half of what the large transaction takes then, since 300 of its records at most go out at a time,
and many times what it takes otherwise.
"""


@pytest.fixture
def stage(
    database: str, postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Stage]:
    limits = {"batch_records": PAGE, "max_in_flight_records": 3 * PAGE}
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", atomic=True, limits=limits)
    stage = Stage(outbox, postgres, tmp_path)
    yield stage
    stage.close()


@pytest.mark.parametrize("key", [pytest.param("own", marks=pytest.mark.long), "k0"])
def test_one_with_an_early_and_a_late_id_comes_out_with_the_window_around_it(
    stage: Stage, kafka: EmbeddedKafka, key: str, is_long: bool
) -> None:
    """Its first key is its own, or one in which a tenth of all waits behind it: more than is held back."""
    topic, transactions = stage.outbox.topic, TRANSACTIONS["long" if is_long else "short"]
    with (
        psycopg.connect(stage.outbox.database) as spanning,
        psycopg.connect(stage.outbox.database, autocommit=True) as others,
    ):
        stash(spanning, [OutboxRecord(topic, key, json.dumps([0, 0, 2]))])
        others.execute(FILL)
        others.execute("CALL fill(%s, %s, %s)", (topic, transactions, SIZE))
        stash(spanning, [OutboxRecord(topic, "late", json.dumps([0, 1, 2]))])
    process = stage.harvester()
    with told(process):
        stage.is_drained()
        wait_until(lambda: stage.outbox.query("SELECT FROM outbox_parked") == [], doing="publishing from there")
    messages = stage.outbox.committed()
    batches = read_batches(stage.outbox, stage.names.ledger_topic, kafka)
    assert len(set(batches.values())) >= transactions * SIZE // (2 * PAGE), "the window went out in few pieces"
    assert not torn({0: 2, **dict.fromkeys(range(1, transactions + 1), SIZE)}, messages, batches)
    lanes: dict[bytes, list[int]] = {}
    for message in messages:
        lanes.setdefault(message.key() or b"", []).append(SourceRecord.of(message).transaction)
    assert all(lane == sorted(lane) for lane in lanes.values())


@pytest.mark.parametrize("late_scene", [True], ids=["atomic"], indirect=True)
def test_one_that_exceeds_the_time_of_a_transaction_is_parked_by_name(late_scene: LateScene) -> None:
    """The first time may be the servers' fault, the second is not. Retried when Kafka is quick again, it comes out."""
    scene, size = late_scene, 4_000
    scene.limits = {"batch_records": 100, "max_in_flight_records": 300, "transaction_timeout": TRANSACTION_TIMEOUT}
    sizes = {0: 10, 1: size, 2: 10}

    def write(number: int) -> int:
        values = [json.dumps([number, place, sizes[number]]) for place in range(sizes[number])]
        with psycopg.connect(scene.outbox.database) as connection:
            records = [
                OutboxRecord(scene.outbox.topic, f"{number}-{place % 100}", value) for place, value in enumerate(values)
            ]
            return stash(connection, records).transaction_id

    scene.frames.mistreat(lambda request: Delay(SLOW) if request.api == Api.PRODUCE else None)
    _, large, _ = (write(number) for number in sizes)
    leader = scene.leader()
    scene.wait_until(lambda: sum(f"transaction {large} " in error for error in errors_of(leader)) >= 2)
    scene.frames.heal()
    scene.wait_until(lambda: scene.outbox.left() == 0)
    [(cause, reason)] = scene.outbox.query("SELECT cause, reason FROM outbox_parked WHERE cause IS NOT NULL")
    assert cause == "too_large"
    assert f"transaction {large} has {size} records and was twice not published within 6.4 s" in reason
    assert scene.outbox.query("SELECT count(*) FROM outbox_parked") == [(size,)]
    assert {SourceRecord.of(message).transaction for message in scene.outbox.committed()} == {0, 2}
    scene.outbox.query("UPDATE outbox_parked SET requested = 'retry' WHERE cause IS NOT NULL RETURNING id")
    scene.wait_until(lambda: scene.outbox.query("SELECT FROM outbox_parked") == [])
    leader.popen.terminate()
    leader.ends()
    batches = read_batches(scene.outbox, scene.ledger_topic, scene.servers.kafka)
    assert not torn(sizes, scene.outbox.committed(), batches)
