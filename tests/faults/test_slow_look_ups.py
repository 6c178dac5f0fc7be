"""Kafka does not tell about one topic: records of all others go out meanwhile."""

from __future__ import annotations

import psycopg
import pytest
from faults.frames import Request
from faults.late import LateScene
from faults.treatments import Hold
from support.harvesting import CHILD, Outbox, Process, make_topic, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.ports import LOOPBACK

METADATA, DESCRIBE_TOPICS = 3, 75
RECORDS = 20


def stash_one(scene: LateScene, topic: str, value: str) -> None:
    with psycopg.connect(scene.outbox.database) as connection:
        stash(connection, [OutboxRecord(topic, "k", value)])


@pytest.mark.parametrize("late_scene", [False, True], indirect=True, ids=["single", "atomic"])
def test_a_topic_about_which_kafka_does_not_tell_holds_up_its_own_records_alone(late_scene: LateScene) -> None:
    scene, outbox = late_scene, late_scene.outbox
    ways = {
        "kafka": {"bootstrap.servers": f"{LOOPBACK}:{scene.frames.port}"},
        "kafka_producer": {"bootstrap.servers": outbox.bootstrap},
    }
    scene.members.append(Process(list(CHILD), first_line={"config": {**outbox.settings, **ways}, "until": "forever"}))
    outbox.stash(RECORDS)
    scene.wait_until(lambda: outbox.left() == 0)  # a new topic may have no leaders yet, so nobody reads it before

    unknown = Outbox(outbox.database, outbox.bootstrap, outbox.topic + "-unknown", partitions=1)
    make_topic({"bootstrap.servers": outbox.bootstrap}, unknown.topic, partitions=1)

    def asks(request: Request) -> Hold | None:
        is_look_up = request.api in (METADATA, DESCRIBE_TOPICS)
        return Hold() if is_look_up and unknown.topic.encode() in request.frame else None

    held = scene.frames.mistreat(asks)
    stash_one(scene, unknown.topic, "1")
    scene.wait_until(held.struck.is_set)
    outbox.stash(RECORDS, start=RECORDS)
    scene.wait_until(lambda: len(outbox.committed()) == 2 * RECORDS)
    parked = "SELECT number, cause FROM outbox_parked"
    wait_until(lambda: [cause for _, cause in outbox.query(parked)] == ["untried"])
    stash_one(scene, unknown.topic, "2")
    wait_until(lambda: len(outbox.query(parked)) == 2)

    scene.frames.heal()
    wait_until(lambda: not outbox.query(parked))
    assert [message.value() for message in unknown.committed()] == [b"1", b"2"]
    assert len(outbox.committed()) == 2 * RECORDS
