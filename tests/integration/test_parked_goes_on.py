"""Parked records go on as soon as nothing stops them any more, without anybody asking for each record."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, LiteralString

import psycopg
import pytest
from support.harvesting import CALM, CHILD, Outbox, Process, make_outbox, make_topic, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.pages import KEY
from airflow_outbox.values.refusals import Cause, Refusal

from .many_parked import NAME, due, of_a_topic_half_of_whose_keys_wait, of_a_topic_that_was_missing, released

LANES_IN_POSTGRES = """
from airflow_outbox.harvest.__main__ import main
from airflow_outbox.harvest.protocol.parking import ParkedLanes

ParkedLanes.most_lanes = 0
main()
"""
"""The harvesting child, which keeps no parked lane in memory: as it is with very many."""
FEW_AT_A_TIME = """
from airflow_outbox.postgres import parked

parked._MOST_CHANGED = 1
"""
KEYS = 200


@contextmanager
def harvested(outbox: Outbox, *command: str) -> Iterator[Process]:
    process = Process(list(command) or CHILD, first_line={"config": outbox.settings})
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


MODES = {"single": {}, "atomic": {"atomic": True}, "at least once": {"delivery": "at_least_once"}}


@pytest.mark.parametrize("command", [(), (sys.executable, "-c", LANES_IN_POSTGRES)], ids=["in memory", "in Postgres"])
@pytest.mark.parametrize("mode", MODES)
def test_a_topic_that_is_made_goes_on_while_records_keep_coming(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, mode: str, command: Sequence[str]
) -> None:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", limits=CALM, **MODES[mode])
    topic, ending, written = named(outbox, "missing"), threading.Event(), 0

    def keep_writing() -> None:
        nonlocal written
        with psycopg.connect(outbox.database, autocommit=True) as connection:
            while not ending.wait(0.005):
                stash(connection, [OutboxRecord(topic, f"k{written % KEYS}", str(written))])
                written += 1

    with harvested(outbox, *command), ThreadPoolExecutor(1) as pool:
        writing = pool.submit(keep_writing)
        try:
            wait_until(lambda: len(parked(outbox)) > 2 * KEYS, doing="parking")
            assert mode == "atomic" or [row["cause"] for row in parked(outbox)].count("unknown_topic") == 1
            create(outbox, topic)
            ask(outbox, "retry", Choice(topic=topic))
            wait_until(lambda: not parked(outbox), doing="publishing what waits")
            until = written + 100
            wait_until(lambda: written >= until and not parked(outbox), doing="going on")
        finally:
            ending.set()
        writing.result()
        wait_until(lambda: outbox.left() == 0 and not parked(outbox), doing="publishing the last ones")
        lanes: dict[int, list[int]] = {}
        for value in map(int, values(outbox, topic)):
            lanes.setdefault(value % KEYS, []).append(value)
        assert lanes == {key: list(range(key, written, KEYS)) for key in range(KEYS)}


@pytest.mark.parametrize("mode", MODES)
def test_others_go_on_while_very_many_are_discarded(
    database: str, kafka: EmbeddedKafka, topic_prefix: str, mode: str
) -> None:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", limits=CALM, **MODES[mode])
    outbox.query(
        "INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values,"
        f" transaction_id, incarnation, cause) SELECT n, now(), '{outbox.topic}', n, '{{}}', '{{}}', '3', 1, 'headers'"
        " FROM generate_series(1, 30000) AS n"
    )
    left = "SELECT count(*) FROM outbox_parked WHERE discarded_at IS NULL"
    with harvested(outbox, sys.executable, "-c", FEW_AT_A_TIME + LANES_IN_POSTGRES):
        ask(outbox, "discard", Choice(everything=True))
        wait_until(lambda: outbox.query(left) < [(30000,)], doing="discarding")
        outbox.stash(10)
        wait_until(lambda: outbox.left() == 0, doing="publishing others")
        assert outbox.query(left) > [(0,)]
        assert len(outbox.committed()) == 10


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


@contextmanager
def reading_few_blocks(connection: psycopg.Connection, *, most: int) -> Iterator[None]:
    """What is done meanwhile reads at most so many blocks of the parked table, and not all of it."""
    fetched = "SELECT pg_stat_get_xact_blocks_fetched('outbox_parked'::regclass)"
    with connection.transaction():
        [(before,)] = connection.execute(fetched).fetchall()
        yield
        [(after,)] = connection.execute(fetched).fetchall()
    assert after - before < most


def test_many_keys_that_go_on_at_once_are_found(database: str) -> None:
    """A topic was missing for a while, and is there now."""
    with psycopg.connect(database, autocommit=True) as connection:
        ids = released(connection, *of_a_topic_that_was_missing(connection))
    assert ids == sorted(ids)
    assert len(ids) == 20_000


@pytest.mark.parametrize("how", ["requested = 'retry'", "retry_at = now()", "retry_at = now() + interval '1 day'"])
def test_what_is_due_is_found_without_a_look_at_all_that_waits(database: str, how: LiteralString) -> None:
    """The leader looks each second."""
    with psycopg.connect(database, autocommit=True) as connection:
        records, _ = of_a_topic_that_was_missing(connection)
        connection.execute(f"UPDATE outbox_parked SET {how} WHERE number % 10000 = 0")
        with reading_few_blocks(connection, most=200):
            rows, _ = records.due(max_records=1000, max_bytes=10**9, of_all_lanes=False)
        assert {row[0] for row in rows} > {10_000, 20_000, 30_000, 40_000, 50_000}


def test_few_records_are_changed_at_a_time_however_many_somebody_asks_for(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is purged waits for such a statement, and a longer one would be given up and begun again for ever."""
    monkeypatch.setattr("airflow_outbox.postgres.parked._MOST_CHANGED", 20)
    with psycopg.connect(database, autocommit=True) as connection:
        records, view = of_a_topic_that_was_missing(connection, records=50)
        connection.execute("UPDATE outbox_parked SET requested = 'retry'")
        asked = "SELECT count(*) FROM outbox_parked WHERE requested IS NOT NULL"
        left = [50]
        while tried := records.due(max_records=1, max_bytes=10**9, of_all_lanes=False)[0]:
            missing = Refusal(Cause.UNKNOWN_TOPIC, "there is no such topic")
            records.note_refusals(view, {tried[0][0]: missing}, others=[])
            left += connection.execute(asked).fetchone() or ()
        assert max(before - after for before, after in pairwise(left)) < 25
        assert left[-1] == 0
        connection.execute("UPDATE outbox_parked SET requested = 'discard', requested_at = now()")
        assert [len(records.discard_requested(view)) for _ in range(4)] == [20, 20, 10, 0]


@pytest.mark.parametrize("key_type", ["text", "bytea"])
def test_postgres_knows_the_lanes_of_all_keys_as_they_are_read(database: str, key_type: str) -> None:
    sizes = 0, 1, 100, 101, 132, 5000
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME, key_type=key_type)
        connection.execute("ALTER TABLE outbox_parked ALTER kafka_key DROP NOT NULL")
        table = OutboxTable(connection, NAME, most_bytes=4000)  # the largest key is read as its short one
        letter, end = (b"\xff", b"x") if key_type == "bytea" else ("ä", "x")
        for key in (*(letter * size for size in sizes), None):
            connection.execute(
                "INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys,"
                " kafka_header_values, transaction_id, incarnation, requested)"
                " VALUES (1, now(), 't', %s, '{}', '{}', '3', 1, 'retry')",
                [key],
            )
        rows, _ = ParkedTable(table).due(max_records=100, max_bytes=10**9, of_all_lanes=False)
        keys = [row[KEY] for row in rows]
        assert len(set(keys)) == len(sizes) + 1
        waiting = [("t", key) for key in keys]
        others = [*(("u", key) for key in keys), *(("t", key + end) for key in keys if key is not None)]
        assert ParkedTable(table).waiting_lanes([*waiting, *others], leaving=[]) == set(waiting)


def test_postgres_finds_out_which_lanes_wait_without_a_look_at_all_that_waits(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        records, _ = of_a_topic_that_was_missing(connection)
        lanes = [("t", f"k{number}") for number in range(24_500, 25_500)]
        with reading_few_blocks(connection, most=2 * len(lanes)):
            assert len(records.waiting_lanes(lanes, leaving=list(range(1, 20_000)))) == 500


def test_a_topic_goes_on_past_many_keys_that_wait_until_somebody_asks(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        assert due(of_a_topic_half_of_whose_keys_wait(connection)) == list(range(1, 50_000, 2))
