"""Records that are too large, or nearly, in both modes of delivery, with the compression that is the default."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.harvesting import CALM, CHILD, Outbox, Process, make_outbox, make_topic, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

CLIENT_LIMIT, LIMIT = 200_000, 20_000
DRAW = random.Random(1)
HEXADECIMAL = DRAW.randbytes(19_000).hex()  # lz4 leaves 38,000 bytes of it, other codecs 19,000
NOISE = DRAW.randbytes(60_000).hex()  # 60,000 whatever the codec
SMALL = {f"k{n}": [str(n)] for n in range(20)}


@pytest.fixture(params=["exactly_once", "at_least_once"])
def outbox(request: pytest.FixtureRequest, database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    producer = {"message.max.bytes": CLIENT_LIMIT}
    made = make_outbox(
        database,
        bootstrap=kafka.bootstrap,
        topic=topic_prefix + "data",
        delivery=request.param,
        kafka_producer=producer,
        limits=CALM,
    )
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER TABLE outbox ALTER kafka_value TYPE text")
        connection.execute("ALTER TABLE outbox_parked ALTER kafka_value TYPE text")
    return made


@pytest.fixture
def harvester(outbox: Outbox) -> Iterator[Process]:
    process = Process(CHILD, first_line={"config": outbox.settings})
    process.wait_for("view")
    yield process
    process.end()


def write(outbox: Outbox, topic: str, **more: str) -> None:
    """Small records of keys of their own, and others among them, by key."""
    small = [OutboxRecord(topic, key, value) for key, (value,) in SMALL.items()]
    large = [OutboxRecord(topic, key, value) for key, value in more.items()]
    half = len(small) // 2
    with psycopg.connect(outbox.database) as connection:
        stash(connection, [*small[:half], *large, *small[half:]])
    wait_until(lambda: outbox.left() == 0)


def parked(outbox: Outbox) -> list[tuple[Any, ...]]:
    return outbox.query("SELECT kafka_key, cause FROM outbox_parked ORDER BY kafka_key")


def published(outbox: Outbox, topic: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for message in Outbox(outbox.database, outbox.bootstrap, topic).committed():
        found.setdefault(message.key().decode(), []).append(message.value().decode())
    return found


def test_what_the_client_does_not_take_is_parked_and_no_term_ends_for_it(outbox: Outbox, harvester: Process) -> None:
    write(outbox, outbox.topic, bad="x" * CLIENT_LIMIT, good="x" * (CLIENT_LIMIT - 100))
    wait_until(lambda: parked(outbox) == [("bad", "too_large")])
    assert published(outbox, outbox.topic) == {**SMALL, "good": ["x" * (CLIENT_LIMIT - 100)]}
    assert harvester.failures == []


def test_what_is_too_large_only_before_it_is_compressed_is_published(outbox: Outbox, harvester: Process) -> None:
    small = outbox.topic + "-small"
    make_topic({"bootstrap.servers": outbox.bootstrap}, small, config={"max.message.bytes": str(LIMIT)})
    write(outbox, small, noise=NOISE, hexadecimal=HEXADECIMAL, well="x" * 5 * LIMIT)
    wait_until(lambda: parked(outbox) == [("hexadecimal", "too_large"), ("noise", "too_large")])
    assert published(outbox, small) == {**SMALL, "well": ["x" * 5 * LIMIT]}
    # Others are known by now, or are found one at a time.
    outbox.query("UPDATE outbox_parked SET requested = 'discard' RETURNING id")
    failures = len(harvester.failures)
    write(outbox, small, noise=NOISE, again=HEXADECIMAL)
    tried = "SELECT kafka_key, cause FROM outbox_parked WHERE discarded_at IS NULL ORDER BY kafka_key"
    wait_until(lambda: outbox.query(tried) == [("again", "too_large"), ("noise", "too_large")])
    assert published(outbox, small) == {
        **{key: value * 2 for key, value in SMALL.items()},
        "well": ["x" * 100000],
    }
    assert len(harvester.failures) <= failures + 1
