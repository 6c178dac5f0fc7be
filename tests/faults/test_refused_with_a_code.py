"""Kafka answers an error whenever a certain record is sent, and takes all else. Whatever the error, that record is
found and set aside, with what is behind it in its key, and all others are published, once and in order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from confluent_kafka import KafkaError
from faults.frames import Api, Request
from faults.late import FrameServers, LateScene
from faults.treatments import Refuse, Treatment
from support.harvesting import make_outbox, make_topic

from airflow_outbox import OutboxRecord, stash

RECORDS, KEYS = 2_000, 20
REFUSED = 700
REFUSED_VALUE = "the refused one"
CODES = ("UNKNOWN", "UNSUPPORTED_COMPRESSION_TYPE", "INVALID_REQUEST", "INVALID_RECORD")
WAITS = [place for place in range(REFUSED, RECORDS) if place % KEYS == REFUSED % KEYS]
MODES = {"single": {}, "atomic": {"atomic": True}, "at least once": {"delivery": "at_least_once"}}


@pytest.fixture(params=MODES.values(), ids=MODES)
def scene(frame_servers: FrameServers, topic_prefix: str, request: pytest.FixtureRequest) -> Iterator[LateScene]:
    """Its records are sent as they are, so that they can be told from each other on the way, and in many requests: the
    refused one is mostly in none of those that the client is asked to report.
    """
    name = f"refused_{uuid.uuid4().hex[:12]}"
    database = frame_servers.postgres.create_database(name)
    settings = {"kafka_producer": {"compression.type": "none", "batch.num.messages": 50}, **request.param}
    outbox = make_outbox(database, bootstrap=frame_servers.kafka.bootstrap, topic=topic_prefix + "data", **settings)
    scene = LateScene(frame_servers, outbox, records=RECORDS)
    yield scene
    frame_servers.restore()
    scene.close()
    frame_servers.postgres.drop_database(name)


def stash_all(scene: LateScene) -> None:
    """Each in a transaction of its own, and visible together."""
    values = [str(place) if place != REFUSED else REFUSED_VALUE for place in range(RECORDS)]
    with psycopg.connect(scene.outbox.database) as connection:
        for place, value in enumerate(values):
            stash(connection, OutboxRecord(scene.outbox.topic, f"k{place % KEYS}", value))
            connection.commit()


def published(scene: LateScene) -> dict[str, list[str]]:
    """What is in the topic by key, in order; at least once, without what came again."""
    found: dict[str, list[str]] = {}
    for message in scene.outbox.committed():
        found.setdefault((message.key() or b"").decode(), []).append((message.value() or b"").decode())
    if scene.outbox.settings.get("delivery") == "at_least_once":
        return {key: list(dict.fromkeys(values)) for key, values in found.items()}
    return found


def expected(places: set[int]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for place in sorted(places):
        found.setdefault(f"k{place % KEYS}", []).append(REFUSED_VALUE if place == REFUSED else str(place))
    return found


@pytest.mark.parametrize("code", CODES)
def test_a_record_that_kafka_answers_an_error_is_set_aside_and_others_go_on(scene: LateScene, code: str) -> None:
    outbox = scene.outbox

    def rule(request: Request) -> Treatment | None:
        is_with_it = request.api == Api.PRODUCE and REFUSED_VALUE.encode() in request.frame
        return Refuse(getattr(KafkaError, code)) if is_with_it else None

    scene.frames.mistreat(rule)
    stash_all(scene)
    member = scene.member()
    scene.wait_until(lambda: outbox.left() == 0)
    waiting = "SELECT count(*) FROM outbox_parked"
    scene.wait_until(lambda: outbox.query(waiting) == [(len(WAITS),)])
    [(value, reason)] = outbox.query("SELECT kafka_value, reason FROM outbox_parked WHERE cause IS NOT NULL")
    assert value == REFUSED_VALUE
    assert KafkaError(getattr(KafkaError, code)).str() in reason
    assert published(scene) == expected(set(range(RECORDS)) - set(WAITS))
    assert len(member.failures) <= 10
    assert not any("in time" in failure["error"] for failure in member.failures), member.failures
    scene.frames.heal()
    outbox.query("UPDATE outbox_parked SET requested = 'retry' WHERE cause IS NOT NULL RETURNING id")
    scene.wait_until(lambda: outbox.query(waiting) == [(0,)])
    assert published(scene) == expected(set(range(RECORDS)))


@pytest.mark.parametrize("scene", [MODES["single"]], indirect=True)
def test_a_topic_that_kafka_adds_to_no_transaction_is_set_aside_and_others_go_on(scene: LateScene) -> None:
    """The client reports no record then."""
    outbox = scene.outbox
    other = f"{outbox.topic}-other"
    make_topic({"bootstrap.servers": outbox.bootstrap}, other)

    def rule(request: Request) -> Treatment | None:
        is_with_it = request.api == Api.ADD_PARTITIONS and other.encode() in request.frame
        return Refuse(KafkaError.UNKNOWN, other) if is_with_it else None

    scene.frames.mistreat(rule)
    with psycopg.connect(outbox.database) as connection:
        for place in range(60):
            topic = other if place == 30 else outbox.topic
            stash(connection, OutboxRecord(topic, f"k{place % KEYS}", str(place)))
            connection.commit()
    member = scene.member()
    scene.wait_until(lambda: outbox.left() == 0)
    scene.wait_until(lambda: outbox.query("SELECT kafka_topic FROM outbox_parked") == [(other,)])
    assert len(outbox.committed()) == 59
    assert not any("in time" in failure["error"] for failure in member.failures), member.failures
    scene.frames.heal()
    scene.wait_until(lambda: outbox.query("SELECT count(*) FROM outbox_parked") == [(0,)])
