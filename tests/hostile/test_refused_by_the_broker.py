"""Innocents around records of which only the broker can say that it does not take them: each answer costs a term."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import psycopg
import pytest
from hostile.innocents import Innocents
from support.harvesting import CHILD, make_topic

from airflow_outbox.harvest.protocol.refused_topics import MINUTE, MOST_REFUSALS

RECORDS = 150
LIMIT = 5_000
ROUNDS = 2
MOST_FAILURES = 10  # in a minute: five records are tried, and they are found first
WITHOUT_SETTINGS = [sys.executable, str(Path(__file__).with_name("without_settings.py"))]
# Letters of a hash are half of what they hold: some codecs find that out, and the default one does not.
PERHAPS_TOO_LARGE = """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT %(topic)s, 'h' || %(number)s, string_agg(md5(part::text || %(number)s), ''), '{}', '{}'
FROM generate_series(1, %(parts)s) AS part"""
WITHOUT_A_KEY = f"""INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT {{topic}} || '-compacted-' || number % 10, NULL, 'v', '{{{{}}}}', '{{{{}}}}'
FROM generate_series(1, {RECORDS}) AS number"""


def make_one(innocents: Innocents, name: str, **config: str) -> None:
    make_topic({"bootstrap.servers": innocents.outbox.bootstrap}, innocents.outbox.topic + name, config=config)


def alter(innocents: Innocents, change: str) -> None:
    with psycopg.connect(innocents.outbox.database) as connection:
        for table in ("outbox", "outbox_parked"):
            connection.execute(f"ALTER TABLE {table} {change}")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["single", "atomic"])
def test_records_that_the_broker_finds_too_large_cost_others_no_more_than_a_few_terms(innocents: Innocents) -> None:
    make_one(innocents, "-small", **{"max.message.bytes": str(LIMIT)})
    alter(innocents, "ALTER kafka_value TYPE text")

    def write_each_in_a_transaction_of_its_own() -> None:
        with psycopg.connect(innocents.outbox.database, autocommit=True) as connection:
            for number in range(RECORDS):
                values = {"topic": innocents.outbox.topic + "-small", "number": str(number), "parts": LIMIT // 32 + 10}
                connection.execute(PERHAPS_TOO_LARGE, values)

    with innocents.harvested() as process:
        began = time.monotonic()
        innocents.around(write_each_in_a_transaction_of_its_own)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "records that are too large wait")
        innocents.stand(named="untried")
        assert len(process.failures) <= MOST_FAILURES * (1 + (time.monotonic() - began) // MINUTE), process.failures


@pytest.mark.parametrize("mode", ["single", "atomic"])
def test_records_without_a_key_for_compacted_topics_are_found_together(innocents: Innocents) -> None:
    for number in range(10):
        make_one(innocents, f"-compacted-{number}", **{"cleanup.policy": "compact"})
    alter(innocents, "ALTER kafka_key DROP NOT NULL")
    with innocents.harvested():
        innocents.around(WITHOUT_A_KEY)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "records without a key wait")
        innocents.stand(named="compacted")


@pytest.mark.parametrize("mode", ["single"])
@pytest.mark.parametrize(
    "command",
    [pytest.param(CHILD, marks=pytest.mark.long, id="known limit"), pytest.param(WITHOUT_SETTINGS, id="unknown limit")],
)
def test_records_that_are_refused_all_the_time_cost_others_a_bounded_number_of_terms(
    innocents: Innocents, command: list[str]
) -> None:
    make_one(innocents, "-small", **{"max.message.bytes": str(LIMIT)})
    alter(innocents, "ALTER kafka_value TYPE text")
    over, written = Event(), 0

    def write_on() -> None:
        nonlocal written
        with psycopg.connect(innocents.outbox.database, autocommit=True) as connection:
            while not over.wait(0.1):
                values = {"topic": innocents.outbox.topic + "-small", "number": str(written), "parts": LIMIT // 32 + 10}
                connection.execute(PERHAPS_TOO_LARGE, values)
                written += 1

    with innocents.harvested(command=command) as process, ThreadPoolExecutor(1) as threads:
        began = time.monotonic()
        writing = threads.submit(write_on)
        try:
            for _ in range(ROUNDS):
                innocents.around(lambda: over.wait(1))
        finally:
            over.set()
        writing.result()
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "records that are too large wait")
        innocents.stand(named="untried")
        most = MOST_REFUSALS * (1 + (time.monotonic() - began) // MINUTE)
        assert len(process.failures) <= most, process.failures
