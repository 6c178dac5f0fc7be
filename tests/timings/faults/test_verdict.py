"""How soon the verdict tells what has happened: `docs/concepts/verdict.md` has the bounds.

The best of three times counts, where nothing else is as slow as one that comes by a time-out.
"""

from __future__ import annotations

import os
import signal

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from faults.processes import go_on
from faults.scene import EXACTLY_ONCE, Scene
from faults.verdicts import A_HEARTBEAT, becomes, expire_soon, healthy, look, seconds, tells
from support.harvesting import PATIENCE

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.values.verdict import State
from timings.faults.best import A_LITTLE, best

pytestmark = [pytest.mark.timed, pytest.mark.parametrize("delivery", [EXACTLY_ONCE])]

KNOWN_WITHIN = 3.0
"""Seconds until operators know that Kafka can't be reached, that a topic is missing, or that Kafka is back."""
BETWEEN_LOOKS = 5.0
"""Seconds until a member tells a new verdict: as an event, in the task's log and in the metrics."""
DEFAULT_SESSION = 6.0
"""Seconds: `limits.session_timeout`."""


@pytest.mark.long(how="killed", members=1)
@pytest.mark.long(how="frozen", members=2)
@pytest.mark.parametrize("members", [1, 2], ids=["alone", "with a standby"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_kafka_is_away(scene: Scene, how: str, members: int) -> None:
    expire_soon(scene)
    leader = scene.leader()
    if members == 2:
        scene.standby()
    kafka, told = scene.servers.kafka, list[float]()

    def is_away() -> float:
        healthy(scene)
        before = len(leader.events)
        (kafka.kill if how == "killed" else kafka.pause)()
        try:
            known = seconds(lambda: becomes(scene, State.STALLED, says="can't reach Kafka at"))
            told.append(known + seconds(lambda: tells(scene, leader, State.STALLED, after=before)))
        finally:
            (kafka.start if how == "killed" else kafka.resume)()
        return known

    best(is_away, within=KNOWN_WITHIN)
    assert min(told) <= KNOWN_WITHIN + BETWEEN_LOOKS + A_LITTLE, told


def test_one_member_alone_does_not_reach_kafka(scene: Scene) -> None:
    scene.leader()
    scene.member(proxied=True).wait_for("progress", standing="standby")

    def is_noted() -> float:
        healthy(scene)
        scene.wait_until(lambda: not look(scene).notes)
        scene.servers.to_kafka.hold()
        took = seconds(lambda: scene.wait_until(lambda: bool(look(scene).notes)))
        scene.servers.to_kafka.heal()
        return took

    best(is_noted, within=KNOWN_WITHIN)


def test_postgres_is_away(scene: Scene) -> None:
    leader, told = scene.leader(), list[float]()

    def is_away() -> float:
        healthy(scene)
        before = len(leader.events)
        scene.servers.postgres.kill()
        known = seconds(lambda: becomes(scene, State.UNKNOWN, says="can't connect to Postgres"))
        told.append(known + seconds(lambda: tells(scene, leader, State.UNKNOWN, after=before)))
        scene.servers.postgres.start()
        return known

    best(is_away, within=1)
    assert min(told) <= KNOWN_WITHIN + BETWEEN_LOOKS + A_LITTLE, told


def test_the_only_member_is_frozen(scene: Scene) -> None:
    leader = scene.leader()

    def is_frozen() -> float:
        healthy(scene)
        os.kill(leader.popen.pid, signal.SIGSTOP)
        took = seconds(lambda: becomes(scene, State.NO_LEADER, says=f":{leader.popen.pid} was last heard from"))
        go_on(leader)
        return took

    best(is_frozen, within=DEFAULT_SESSION + A_HEARTBEAT)


def test_a_topic_of_the_outboxs_own_is_missing(scene: Scene) -> None:
    scene.leader()
    healthy(scene)
    topic = f"airflow-outbox.{scene.outbox.query('SELECT outbox_id FROM outbox_state')[0][0]}.leader"
    admin = AdminClient({"bootstrap.servers": scene.outbox.bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE)
    says = f"topic {topic} does not exist"
    assert seconds(lambda: becomes(scene, State.STALLED, says=says)) <= KNOWN_WITHIN + A_LITTLE


def test_a_data_topic_is_missing(scene: Scene) -> None:
    scene.leader()
    healthy(scene)
    with psycopg.connect(scene.outbox.database) as connection:
        stash(connection, [OutboxRecord("no.such.topic", "k", "v")])
    assert seconds(lambda: becomes(scene, State.LAGGING, says="no.such.topic")) <= KNOWN_WITHIN + A_LITTLE
