"""Producers that take turns: their number changes, brokers come back, other applications' transactions stay open."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
from confluent_kafka import Producer
from faults.frames import Api, Request
from faults.late import LateScene
from faults.returning_broker import comes_back
from faults.scene import EXACTLY_ONCE, Scene
from faults.treatments import Hold
from support.harvesting import PARTITIONS, SHORT_SESSION

from airflow_outbox import OutboxRecord, published, stash

COMMITS = 4
MOST_OPEN = 900
"""Seconds that Kafka lets a transaction be open, at most."""


@pytest.fixture
def delivery() -> str:
    return EXACTLY_ONCE


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


def is_overlapped(seen: Sequence[Request], commit: Request) -> bool:
    """Whether another producer has sent records of a transaction that it has not asked to commit."""
    sent = [request for request in seen if request.api in (Api.PRODUCE, Api.END)]
    last = {request.transactional_id: request.api for request in sent if request.transactional_id}
    return any(api == Api.PRODUCE for name, api in last.items() if name != commit.transactional_id)


def test_a_transaction_is_produced_while_the_one_before_commits(late_scene: LateScene) -> None:
    """Each commit waits until another producer sends, or has sent, records of the next transaction."""
    scene = late_scene
    scene.limits |= {"transaction_timeout": 300, "delivery_timeout": 300}  # a commit that is held is not given up
    before = len(scene.frames.seen)
    scene.leader()
    scene.midway()
    for _ in range(COMMITS):
        commit = scene.frames.strike(Api.END, Hold(), where=lambda request: bool(request.commits))
        scene.wait_until(commit.struck.is_set)
        [strike] = commit.strikes
        scene.wait_until(lambda: is_overlapped(scene.frames.seen[before:], strike.request))  # noqa: B023
        strike.deliver()
        scene.wait_until(strike.answered.is_set)
    scene.ends_well()


@pytest.mark.parametrize(
    "number", [None, pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
def test_when_the_broker_is_back_one_of_three_members_goes_on(scene: Scene, number: int | None) -> None:
    """With the default number of producers or another. None of them keeps its place for so long."""
    scene.limits = {**scene.limits, **SHORT_SESSION} | ({} if number is None else {"transactional_ids": number})
    scene.leader()
    scene.standby()
    scene.standby()

    def kill() -> None:
        scene.servers.kafka.kill()
        scene.wait_until(lambda: scene.marked() > 0)

    comes_back(scene, kill, away=SHORT_SESSION["session_timeout"] + 2)
    scene.ends_well()


def test_what_is_published_is_told_while_another_applications_transaction_holds_readers_back(scene: Scene) -> None:
    """The stable offsets don't tell then that the markers are written."""
    stranger = Producer(
        {
            "bootstrap.servers": scene.outbox.bootstrap,
            "transactional.id": f"stranger of {scene.outbox.topic}",
            "transaction.timeout.ms": MOST_OPEN * 1000,
        }
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
            scene.wait_until(lambda: published(connection, ticket))  # noqa: B023
    assert scene.outbox.committed() == []
    stranger.abort_transaction()
    scene.wait_until(lambda: len(scene.outbox.committed()) == 3)
