"""A harvest whose calls to Postgres and Kafka are counted: in Postgres' own log, and by the child."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from support import counting
from support.harvesting import CALM, Outbox, Process, make_outbox, wait_until
from support.statement_log import Statement, StatementLog

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.values.records import Snapshot

FIRST, BATCH = 2_500, 5_000  # the first batch is half as large, for its page is
BATCHES = 13
ROWS = FIRST + BATCH * (BATCHES - 1)
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


@dataclass(frozen=True, slots=True)
class Harvested:
    """A backlog of so many batches, published and purged by a harvester that still runs."""

    outbox: Outbox
    log: StatementLog
    backends: frozenset[int]
    statements: Sequence[Statement]
    """From the first read to the last purge."""
    counted: Mapping[str, int]
    """Calls to Kafka's producer and to threads until the last commit, and delivery reports."""
    counted_first: Mapping[str, int]
    """The same until the first one."""

    def snapshot(self) -> Snapshot:
        ((text,),) = self.outbox.query("SELECT pg_current_snapshot()::text")
        return Snapshot.parse(text)

    @property
    def seconds(self) -> float:
        return (self.statements[-1].began - self.statements[0].began).total_seconds()


@pytest.fixture(name="harvested")
def harvested_backlog(
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
        counted = [event["counts"] for event in process.events if event["event"] == "counted"]
        yield Harvested(outbox, log, backends, found[first : last + 1], counted[-1], counted[0])
    finally:
        process.end()


def is_read(statement: Statement) -> bool:
    return statement.name in ("read_window", "read_on")


def returns_records(statement: Statement) -> bool:
    """The first row that a read returns is no record."""
    return is_read(statement) and statement.rows is not None and statement.rows > 1
