"""Producers that take turns: their number changes, brokers come back, other applications' transactions stay open."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from confluent_kafka import Producer
from faults.scene import EXACTLY_ONCE, Scene, wait_for_the_broker
from support.harvesting import PARTITIONS, SHORT_SESSION

from airflow_outbox import OutboxRecord, published, stash

pytestmark = pytest.mark.parametrize("delivery", [EXACTLY_ONCE], indirect=True)
MOST_SECONDS = 10.0


@pytest.mark.parametrize("numbers", [(3, 1, 2), pytest.param((1, 4, 1), marks=pytest.mark.long)], ids=str)
def test_their_number_changes_from_leader_to_leader(scene: Scene, numbers: tuple[int, ...]) -> None:
    """Each leader but the last is killed in the middle of its transactions, which its successor has to fence."""
    for place, number in enumerate(numbers, start=1):
        leader = scene.leader(limits={**scene.limits, **SHORT_SESSION, "transactional_ids": number})
        scene.midway()
        [(recorded,)] = scene.outbox.query("SELECT transactional_ids FROM outbox_ledger")
        assert [name.rpartition(".")[2] for name in recorded] == [str(turn) for turn in range(number)]
        if place < len(numbers):
            scene.stop_in_flight(leader)
            leader.popen.kill()
    scene.ends_well()


@pytest.mark.alone
@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.long), 4])
def test_when_the_broker_is_back_one_of_three_members_goes_on_within_three_seconds(scene: Scene, number: int) -> None:
    scene.limits = {**scene.limits, **SHORT_SESSION, "transactional_ids": number}
    scene.leader()
    scene.standby()
    scene.standby()
    scene.midway()
    scene.servers.kafka.kill()
    scene.was_in_flight()
    time.sleep(SHORT_SESSION["session_timeout"] + 2)
    starting = threading.Thread(target=scene.servers.kafka.start)
    starting.start()
    returned_at = wait_for_the_broker(scene.servers.kafka)
    assert scene.reader.first_since(returned_at, within=60) - returned_at <= 3, scene.story()
    starting.join()
    scene.ends_well()


@pytest.mark.alone
def test_what_is_published_is_told_while_another_applications_transaction_holds_readers_back(scene: Scene) -> None:
    """The stable offsets don't tell then that the markers are written."""
    stranger = Producer(
        {"bootstrap.servers": scene.outbox.bootstrap, "transactional.id": f"stranger of {scene.outbox.topic}"}
    )
    stranger.init_transactions()
    stranger.begin_transaction()
    for partition in range(PARTITIONS):
        stranger.produce(scene.outbox.topic, b"not ours", partition=partition)
    stranger.flush()
    scene.leader()
    with psycopg.connect(scene.outbox.database, autocommit=True) as connection:
        for _ in range(3):
            with connection.transaction():
                ticket = stash(connection, OutboxRecord(scene.outbox.topic, "k", "1"))
            deadline = time.monotonic() + MOST_SECONDS
            while not published(connection, ticket):
                assert time.monotonic() < deadline, scene.story()
                time.sleep(0.05)
    assert scene.outbox.committed() == []
    stranger.abort_transaction()
    scene.wait_until(lambda: len(scene.outbox.committed()) == 3)
