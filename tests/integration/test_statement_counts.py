"""What a batch costs in calls to Postgres and Kafka, and what waiting costs: counts, which no busy machine changes.

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
from support.harvesting import PARTITIONS, Outbox, Process, make_outbox, wait_until
from support.statement_log import Statement, StatementLog

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

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
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'airflow-outbox %'
"""


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

    @property
    def seconds(self) -> float:
        return (self.statements[-1].began - self.statements[0].began).total_seconds()


@pytest.fixture
def harvested(
    database: str, postgres: EmbeddedPostgres, kafka: EmbeddedKafka, topic_prefix: str
) -> Iterator[Harvested]:
    limits = {"limits": {"batch_records": BATCH}}
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
    # Nothing else comes with a batch, and what comes by the second is known. Once, the log is brought to disk: the
    # first look at the rows has written hints into it. The connection that looks is set up when it is needed first.
    by_the_second, once = {"heartbeat", "holds_fence"}, {"flushed", "flush", "begin_session", "backend_pid"}
    assert names.keys() <= {"read_window", "read_on", "purge_published"} | by_the_second | once, names
    assert all(names[name] <= 1 for name in once), names
    background = len(harvested.statements) - 2 * BATCHES
    assert background <= MOST_A_SECOND * harvested.seconds + SOON_LOOKS, names
    assert names["heartbeat"] <= harvested.seconds + 1


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
    start = harvested.log.end
    time.sleep(IDLE_SECONDS)
    found = harvested.log.statements(harvested.backends, since=start, until=harvested.log.end)
    names = Counter(statement.name for statement in found)
    assert names.keys() == {"read_window", "heartbeat", "holds_fence"}
    assert IDLE_SECONDS * 5 < len(found) <= IDLE_SECONDS * MOST_A_SECOND, names


def ends_of_transactions(outbox: Outbox) -> Iterator[int]:
    """How many offsets of each partition are no records: Kafka notes there that a transaction has ended."""
    records = Counter(message.partition() for message in outbox.committed())
    consumer = Consumer({"bootstrap.servers": outbox.bootstrap, "group.id": "unused"})
    try:
        for number in range(PARTITIONS):
            _, end = consumer.get_watermark_offsets(TopicPartition(outbox.topic, number), timeout=10)
            yield end - records[number]
    finally:
        consumer.close()
