"""Parked records go on as soon as nothing stops them any more, without anybody asking for each record."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.harvesting import CALM, CHILD, Outbox, Process, make_outbox, make_topic, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests
from airflow_outbox.postgres.names import OutboxName

from .many_parked import due, of_a_topic_half_of_whose_keys_wait, of_a_topic_that_was_missing, released


@contextmanager
def harvested(outbox: Outbox) -> Iterator[Process]:
    process = Process(CHILD, first_line={"config": outbox.settings})
    try:
        yield process
    finally:
        process.end()


def named(outbox: Outbox, name: str) -> str:
    return outbox.topic.removesuffix("data") + name


def create(outbox: Outbox, topic: str, **config: str) -> None:
    make_topic({"bootstrap.servers": outbox.bootstrap}, topic, config=config)


def write(outbox: Outbox, *records: OutboxRecord) -> None:
    with psycopg.connect(outbox.database) as connection:
        stash(connection, records)


def parked(outbox: Outbox) -> list[dict[str, Any]]:
    with psycopg.connect(outbox.database) as connection:
        return ParkedRequests(connection, OutboxName.parse("outbox")).listed(Choice(everything=True), limit=10_000)


def ask(outbox: Outbox, request: str, choice: Choice) -> None:
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        ParkedRequests(connection, OutboxName.parse("outbox")).ask(request, choice, reason="a test's own")


def values(outbox: Outbox, topic: str) -> list[str]:
    return [message.value().decode() for message in Outbox(outbox.database, outbox.bootstrap, topic).committed()]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_topic_that_is_made_goes_on_while_records_of_new_keys_keep_coming(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, delivery: str
) -> None:
    outbox = make_outbox(
        database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", delivery=delivery, limits=CALM
    )
    topic, ending, written = named(outbox, "missing"), threading.Event(), 0

    def keep_writing() -> None:
        nonlocal written
        with psycopg.connect(outbox.database, autocommit=True) as connection:
            while not ending.wait(0.005):
                stash(connection, [OutboxRecord(topic, f"k{written}", str(written))])
                written += 1

    with harvested(outbox), ThreadPoolExecutor(1) as pool:
        writing = pool.submit(keep_writing)
        try:
            wait_until(lambda: len(parked(outbox)) > 50, doing="parking")
            assert [row["cause"] for row in parked(outbox)].count("unknown_topic") == 1
            create(outbox, topic)
            ask(outbox, "retry", Choice(topic=topic))
            wait_until(lambda: not parked(outbox), doing="publishing what waits")
            until = written + 100
            wait_until(lambda: written >= until and not parked(outbox), doing="going on")
        finally:
            ending.set()
        writing.result()
        wait_until(lambda: outbox.left() == 0 and not parked(outbox), doing="publishing the last ones")
        assert sorted(map(int, values(outbox, topic))) == list(range(written))


@pytest.fixture
def atomic(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    """An outbox with a parked transaction: one record is too large, others are not, and one of them holds another."""
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", atomic=True, limits=CALM)
    create(outbox, named(outbox, "small"), **{"max.message.bytes": "1000"})
    write(
        outbox,
        OutboxRecord(named(outbox, "small"), "a", "".join(map(str, range(2000)))),
        OutboxRecord(outbox.topic, "b", "with it"),
    )
    write(outbox, OutboxRecord(outbox.topic, "b", "after it"))
    return outbox


def test_the_rest_of_a_transaction_goes_out_when_the_refused_record_is_discarded(atomic: Outbox) -> None:
    with harvested(atomic):
        wait_until(lambda: len(parked(atomic)) == 3, doing="parking")
        (bad,) = (row["id"] for row in parked(atomic) if row["cause"] == "too_large")
        ask(atomic, "discard", Choice(ids=(bad,)))
        wait_until(lambda: not parked(atomic), doing="publishing the others")
        assert values(atomic, atomic.topic) == ["with it", "after it"]


def test_a_failed_retry_of_a_transaction_is_answered_once(atomic: Outbox) -> None:
    with harvested(atomic) as harvester:
        wait_until(lambda: len(parked(atomic)) == 3, doing="parking")
        ask(atomic, "retry", Choice(everything=True))
        wait_until(lambda: all(row["requested"] is None for row in parked(atomic)), doing="the retry")
        harvester.wait_for("retried")
        time.sleep(2.5)  # twice as long as the leader waits before it looks again
        assert [(row["attempts"], row["retry_at"]) for row in parked(atomic)] == [(1, None), (0, None), (0, None)]
        assert len([event for event in harvester.events if event["event"] == "retried"]) == 1


def test_many_keys_that_go_on_at_once_are_found(database: str) -> None:
    """A topic was missing for a while, and is there now."""
    with psycopg.connect(database, autocommit=True) as connection:
        ids = released(connection, *of_a_topic_that_was_missing(connection))
    assert ids == sorted(ids)
    assert len(ids) == 20_000


def test_a_topic_goes_on_past_many_keys_that_wait_until_somebody_asks(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        assert due(of_a_topic_half_of_whose_keys_wait(connection)) == list(range(1, 50_000, 2))
