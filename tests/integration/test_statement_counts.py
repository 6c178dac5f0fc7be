"""The calls to Postgres and Kafka that a batch costs, and that waiting costs: counts, which no busy machine changes.

Postgres' own log is what is counted there, by the harvester's backends. A batch needs one read that returns rows and
one purge; all else is background, and bounded by the second.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from support import counting
from support.harvesting import CALM, PARTITIONS, PATIENCE, Outbox, Process, make_outbox, wait_until
from support.statement_log import Statement, StatementLog

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.values.records import Snapshot

FIRST, BATCH = 2_500, 5_000  # the first batch is half as large, for its page is
BATCHES = 13
ROWS = FIRST + BATCH * (BATCHES - 1)
MOST_A_SECOND = 20
"""Statements beyond a read and a purge a batch: looks for records, heartbeats, looks at the fence."""
SOON_LOOKS = 25
"""Looks that follow soon on the last read that returned rows, before they are a tenth of a second apart, at most."""
LEDGER_RECORDS = 4
"""A batch in the ledger, at most: its transaction's first record, its entry, the head, and the end of an old entry."""
IDLE_SECONDS = 5.0
COUNTING = [sys.executable, str(Path(counting.__file__))]
BACKLOG = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT now(), %s, 'k' || number %% 10, number, '{}', '{}' FROM generate_series(1, %s) AS number
"""
BACKENDS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'airflow-outbox %'
      AND application_name NOT IN ('airflow-outbox observe', 'airflow-outbox history')
"""
BY_THE_CLOCK = """
SELECT application_name, pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name IN ('airflow-outbox observe', 'airflow-outbox history')
"""
LOOK_SECONDS, NOTE_SECONDS = 5.0, 10.0
MOST_A_LOOK = 12
"""Statements of a look at the outbox as a whole; the first one asks where its table is, too."""


@dataclass(frozen=True, slots=True)
class Harvested:
    """A backlog of so many batches, published and purged by a harvester that still runs."""

    outbox: Outbox
    log: StatementLog
    backends: frozenset[int]
    statements: Sequence[Statement]
    """From the first read to the last purge."""
    counted: dict[str, Any]
    """Calls to Kafka's producer until the last commit, and delivery reports."""

    def snapshot(self) -> Snapshot:
        ((text,),) = self.outbox.query("SELECT pg_current_snapshot()::text")
        return Snapshot.parse(text)

    @property
    def seconds(self) -> float:
        return (self.statements[-1].began - self.statements[0].began).total_seconds()


@pytest.fixture
def harvested(
    database: str, postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str
) -> Iterator[Harvested]:
    limits = {"limits": {"batch_records": BATCH, **CALM}}
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", **limits)
    with psycopg.connect(database) as connection:
        connection.execute(BACKLOG, (outbox.topic, ROWS))
    log = StatementLog(database, postgres.log)
    process = Process(COUNTING, first_line={"config": outbox.settings, "until": "forever"})
    try:
        process.wait_for("progress", published=ROWS)
        wait_until(lambda: len(outbox.query(BACKENDS)) == 3)  # the one that looks comes with the first heartbeat
        backends = frozenset(pid for (pid,) in outbox.query(BACKENDS))
        found = log.statements(backends, since=log.start)
        first = next(place for place, statement in enumerate(found) if is_read(statement))
        last = max(place for place, statement in enumerate(found) if statement.name == "purge_published")
        counted = [event for event in process.events if event["event"] == "counted"]
        yield Harvested(outbox, log, backends, found[first : last + 1], counted[-1])
    finally:
        process.end()


def is_read(statement: Statement) -> bool:
    return statement.name in ("read_window", "read_on")


def returns_records(statement: Statement) -> bool:
    """The first row that a read returns is no record."""
    return is_read(statement) and statement.rows is not None and statement.rows > 1


def test_a_batch_is_one_read_and_one_purge(harvested: Harvested) -> None:
    reads = [statement.rows for statement in harvested.statements if returns_records(statement)]
    assert reads == [FIRST + 1] + [BATCH + 1] * (BATCHES - 1)
    names = Counter(statement.name for statement in harvested.statements)
    assert names["purge_published"] == BATCHES
    # Nothing else comes with a batch, and what comes by the second is known. Once, or on a busy machine now and then,
    # the log is brought to disk: the first look at rows has written hints into it. The connection that looks is set up
    # when it is needed first.
    by_the_second, rare = {"heartbeat", "holds_fence"}, {"flushed", "flush"}
    once = {"begin_session", "backend_pid", "notice_hang_ups"}
    assert names.keys() <= {"read_window", "read_on", "look", "purge_published"} | by_the_second | rare | once, names
    assert all(names[name] <= 1 for name in once), names
    assert all(names[name] <= BATCHES // 4 for name in rare), names
    background = len(harvested.statements) - 2 * BATCHES
    assert background <= MOST_A_SECOND * harvested.seconds + SOON_LOOKS, names
    assert names["heartbeat"] <= harvested.seconds + 1
    assert not any("get_byte" in statement.text for statement in harvested.statements), "one shard reckons no slot"


def test_a_batch_is_one_commit_and_few_delivery_reports(harvested: Harvested) -> None:
    counted = harvested.counted
    assert ROWS < counted["produced"] <= ROWS + LEDGER_RECORDS * BATCHES
    assert counted["begun"] == counted["commits"] == BATCHES
    assert counted["flushes"] == 2 * BATCHES  # one tells the offsets, which the ledger's entry is made of
    assert counted["reports"] <= (2 * PARTITIONS + LEDGER_RECORDS) * BATCHES
    # The next batches tell what can be read. On a busy machine they may come too late for that now and then.
    assert counted.get("asked", 0) <= BATCHES // 4
    assert set(ends_of_transactions(harvested.outbox)) <= {0, BATCHES}
    assert len(harvested.outbox.committed()) == ROWS


def test_waiting_costs_a_bounded_number_of_statements(harvested: Harvested) -> None:
    time.sleep(1)
    before = harvested.snapshot()
    start, began = harvested.log.end, time.monotonic()
    time.sleep(IDLE_SECONDS)
    wait_until(lambda: len(harvested.log.statements(harvested.backends, since=start)) > IDLE_SECONDS, doing="looks")
    end, seconds = harvested.log.end, time.monotonic() - began
    found = harvested.log.statements(harvested.backends, since=start, until=end)
    names = Counter(statement.name for statement in found)
    assert names.keys() <= {"look", "read_window", "heartbeat", "holds_fence"}
    # Nothing is read that can't have changed. Each transaction of the server, as other tests have them, begins and
    # ends.
    changes = len(before.in_progress) + 2 * (harvested.snapshot().xmax - before.xmax)
    assert names["read_window"] <= changes
    assert names["read_window"] <= names["look"] + 1  # one may have looked before
    assert len(found) <= seconds * MOST_A_SECOND, names


def test_looks_at_the_whole_and_notes_come_by_the_clock_on_connections_of_their_own(
    harvested: Harvested,
) -> None:
    wait_until(lambda: len(harvested.outbox.query(BY_THE_CLOCK)) == 2)
    backends = dict(harvested.outbox.query(BY_THE_CLOCK))
    time.sleep(0.5)  # they are set up
    start, began = harvested.log.end, time.monotonic()
    time.sleep(2 * LOOK_SECONDS + 1)

    def looks(until: int | None) -> int:
        backend = backends["airflow-outbox observe"]
        return len(harvested.log.statements([backend], since=start, until=until))

    wait_until(lambda: looks(None) >= MOST_A_LOOK // 2, doing="looks")
    end, seconds = harvested.log.end, time.monotonic() - began
    assert looks(end) <= MOST_A_LOOK * (seconds / LOOK_SECONDS + 1)

    def notes(until: int | None) -> list[str | None]:
        found = harvested.log.statements([backends["airflow-outbox history"]], since=start, until=until)
        return [statement.name for statement in found]

    assert len(notes(end)) <= seconds / NOTE_SECONDS + 1
    wait_until(lambda: notes(None))
    assert set(notes(None)) == {"note"}


def ends_of_transactions(outbox: Outbox) -> Iterator[int]:
    """How many offsets of each partition are no records: Kafka notes there that a transaction has ended."""
    records = Counter(message.partition() for message in outbox.committed())
    consumer = Consumer({"bootstrap.servers": outbox.bootstrap, "group.id": "unused"})
    try:
        for number in range(PARTITIONS):
            _, end = consumer.get_watermark_offsets(TopicPartition(outbox.topic, number), timeout=PATIENCE)
            yield end - records[number]
    finally:
        consumer.close()
