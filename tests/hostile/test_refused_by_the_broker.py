"""Innocents around records of which only the broker can say that it does not take them: each answer costs a term."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hostile.innocents import Innocents
from support.harvesting import PARTITIONS

pytestmark = pytest.mark.alone

RECORDS = 150
LIMIT = 5_000
# Letters of a hash are half of what they hold: some codecs find that out, and the default one does not.
PERHAPS_TOO_LARGE = """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT %(topic)s, 'h' || %(number)s, string_agg(md5(part::text || %(number)s), ''), '{}', '{}'
FROM generate_series(1, %(parts)s) AS part"""
WITHOUT_A_KEY = f"""INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT {{topic}} || '-compacted-' || number % 10, NULL, 'v', '{{{{}}}}', '{{{{}}}}'
FROM generate_series(1, {RECORDS}) AS number"""


def make_topic(innocents: Innocents, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": innocents.outbox.bootstrap})
    topic = NewTopic(innocents.outbox.topic + name, PARTITIONS, 1, config=config)
    admin.create_topics([topic])[topic.topic].result()


def alter(innocents: Innocents, change: str) -> None:
    with psycopg.connect(innocents.outbox.database) as connection:
        for table in ("outbox", "outbox_parked"):
            connection.execute(f"ALTER TABLE {table} {change}")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["single", "atomic"])
def test_records_that_the_broker_finds_too_large_cost_others_no_more_than_a_few_terms(innocents: Innocents) -> None:
    make_topic(innocents, "-small", **{"max.message.bytes": str(LIMIT)})
    alter(innocents, "ALTER kafka_value TYPE text")

    def write_each_in_a_transaction_of_its_own() -> None:
        with psycopg.connect(innocents.outbox.database, autocommit=True) as connection:
            for number in range(RECORDS):
                values = {"topic": innocents.outbox.topic + "-small", "number": str(number), "parts": LIMIT // 32 + 10}
                connection.execute(PERHAPS_TOO_LARGE, values)

    with innocents.harvested() as process:
        innocents.around(write_each_in_a_transaction_of_its_own)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "records that are too large wait")
        innocents.stand(named="untried")
        failures = [event for event in process.events if event["event"] == "error"]
        assert len(failures) <= 10, failures


@pytest.mark.parametrize("mode", ["single", "atomic"])
def test_records_without_a_key_for_compacted_topics_are_found_together(innocents: Innocents) -> None:
    for number in range(10):
        make_topic(innocents, f"-compacted-{number}", **{"cleanup.policy": "compact"})
    alter(innocents, "ALTER kafka_key DROP NOT NULL")
    with innocents.harvested():
        innocents.around(WITHOUT_A_KEY)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "records without a key wait")
        innocents.stand(named="compacted")
