"""Shards that one process leads do not hold each other up, and share what it takes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from statistics import median

import psutil
import psycopg
import pytest
from support.harvesting import CALM, CHILD, Outbox, Process, make_outbox, wait_until
from support.sharding import LED, config_of, delays, divided, keys_of

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.operate.reshard import prepare
from airflow_outbox.postgres.layout import ask_layout
from airflow_outbox.postgres.names import OutboxName

BACKLOG, BATCH, MANY = 60_000, 5_000, 250_000
LONGEST_PAUSE = 6.0
KEYS = 160
CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE application_name LIKE 'airflow-outbox %' AND datname = current_database()"
)


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    limits = {**CALM, "batch_records": BATCH}
    return make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", limits=limits)


@pytest.fixture
def start(outbox: Outbox) -> Iterator[Callable[[int], Process]]:
    members: list[Process] = []

    def started(shards: int) -> Process:
        members.append(Process(CHILD, first_line={"config": outbox.settings, "until": "forever"}))
        wait_until(lambda: outbox.query(LED)[0][0] == shards, doing=lambda: str(members[-1].events))
        return members[-1]

    yield started
    for member in members:
        member.end()


def stashed(outbox: Outbox, topic: str, keys: list[str], count: int) -> list[int]:
    """The ids of so many new records."""
    with psycopg.connect(outbox.database) as connection:
        stash(connection, [OutboxRecord(topic, keys[n % len(keys)], str(n)) for n in range(count)])
        return [number for (number,) in connection.execute("SELECT id FROM outbox ORDER BY id DESC LIMIT 1")]


@pytest.mark.timed
def test_a_shard_with_a_large_backlog_delays_another_by_less_than_a_batch(
    outbox: Outbox, start: Callable[[int], Process]
) -> None:
    """Of a backlog, or of some, until enough single records have met one."""
    divided(outbox, 2)
    start(2)
    busy = keys_of(0, 2, outbox.topic, count=20)
    any_left = f"SELECT FROM outbox WHERE kafka_key IN ({', '.join(map(repr, busy))}) LIMIT 1"
    found: list[float] = []
    seconds, backlogs = 0.0, 0
    while len(found) < 5 and backlogs < 10:
        stashed(outbox, outbox.topic, busy, BACKLOG)
        began = time.monotonic()
        found += delays(outbox, while_any_of=any_left, most=10_000)
        seconds, backlogs = seconds + time.monotonic() - began, backlogs + 1
    batch = seconds / (backlogs * BACKLOG / BATCH)
    assert median(found) < batch, f"{found}, a batch took {batch:.3f} s"


@pytest.mark.parametrize(
    "shards", [pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long), 16]
)
def test_what_a_process_takes_for_its_shards(
    outbox: Outbox, start: Callable[[int], Process], shards: int, record_property: Callable[[str, object], None]
) -> None:
    divided(outbox, shards)
    member = start(shards)
    outbox.stash(2_000, keys=200)
    wait_until(lambda: outbox.left() == 0)
    process = psutil.Process(member.popen.pid)
    # Those of before another election may linger.
    wait_until(lambda: outbox.query(CONNECTIONS)[0][0] <= 4 + shards)
    used = {
        "connections": outbox.query(CONNECTIONS)[0][0],
        "threads": process.num_threads(),
        "MB": round(process.memory_full_info().uss / 1e6),
    }
    record_property("used", used)
    print(shards, "shards:", used)


@pytest.mark.long
@pytest.mark.alone
def test_how_long_another_number_of_shards_holds_up_a_record(outbox: Outbox, start: Callable[[int], Process]) -> None:
    """From the request on, with nothing in flight, until all new shards have published something."""
    prepare(config_of(outbox), shards=16)
    member = start(1)
    outbox.stash(KEYS, keys=KEYS)
    wait_until(lambda: outbox.left() == 0)
    for shards in (4, 2, 4, 1, 16, 4):
        assert held_up(outbox, member, shards) < LONGEST_PAUSE


@pytest.mark.long
@pytest.mark.alone
def test_how_long_another_number_of_shards_holds_up_a_backlog(outbox: Outbox, start: Callable[[int], Process]) -> None:
    """The longest time for which no record leaves the outbox, while there are enough of them all the time."""
    prepare(config_of(outbox), shards=16)
    member = start(1)
    for shards in (4, 2, 16, 4):
        outbox.stash(MANY, keys=KEYS)
        began = outbox.left()
        wait_until(lambda began=began: outbox.left() < began - BATCH)  # type: ignore[misc]
        told, asked = len(member.events), datetime.now(UTC)
        with psycopg.connect(outbox.database, autocommit=True) as connection:
            ask_layout(connection, OutboxName.parse(outbox.name), shards=shards)
            pause = longest_standstill(outbox, while_not=lambda shards=shards: outbox.query(LED) == [(shards,)])  # type: ignore[misc]
        left = outbox.left()
        wait_until(lambda: outbox.left() == 0)
        found = {step: max(times) for step, times in steps(member, told, asked).items() if times}
        print(f"until there are {shards} shards: {pause:.1f} s without a record, {left} left then;", found)
        assert left > 0, "there was a backlog all the time"
        assert pause < LONGEST_PAUSE


def longest_standstill(outbox: Outbox, *, while_not: Callable[[], bool]) -> float:
    """The longest time in seconds for which as many records are in the outbox, until it is so, and one leaves again;
    or none is left.
    """
    longest, left, since = 0.0, outbox.left(), time.monotonic()
    is_over = False
    while True:
        found, now = outbox.left(), time.monotonic()
        longest = max(longest, now - since)
        if found != left:
            if is_over:
                return longest
            left, since = found, now
        if found == 0:
            return longest
        is_over = is_over or while_not()


def held_up(outbox: Outbox, member: Process, shards: int) -> float:
    told, asked = len(member.events), datetime.now(UTC)
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        ask_layout(connection, OutboxName.parse(outbox.name), shards=shards)
    pause = wait_until(lambda: layout_of(outbox) == shards)
    outbox.stash(KEYS, keys=KEYS)
    pause += wait_until(lambda: outbox.left() == 0)
    wait_until(lambda: len(steps(member, told, asked)["elected"]) >= shards, doing=lambda: str(member.events[told:]))
    found = {step: max(times) for step, times in steps(member, told, asked).items() if times}
    print(f"until there are {shards} shards: {pause:.1f} s;", found)
    return pause


def steps(member: Process, told: int, asked: datetime) -> dict[str, list[float]]:
    """When what a new layout takes was done, in seconds since it was asked for."""
    events = list(itertools.dropwhile(lambda event: event["event"] != "resharded", member.events[told:]))
    return {
        step: [
            round((datetime.fromisoformat(event["time"]) - asked).total_seconds(), 1)
            for event in events
            if event["event"] == step
        ]
        for step in ("resharded", "stands_in", "took_over", "elected")
    }


def layout_of(outbox: Outbox) -> int:
    return int(outbox.query("SELECT shards FROM outbox_state")[0][0])
