"""Records that Kafka never takes, of every kind, among others, while leaders are killed: they wait, and so does what
comes behind them in their topic and key; all else comes once and in order; and what is corrected lets the rest go.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from support.harvesting import COMMAND, PARTITIONS, SHORT_SESSION, Outbox, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

KEYS = 60
RECORDS = 12_000
MAX_MESSAGE_BYTES = 40_000
POISON = {
    "headers": "kafka_header_values = ARRAY[]::text[]",
    "null header": "kafka_header_values = ARRAY[NULL]::text[]",
    "too large": "kafka_value = (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 3000))",
    "partition": "kafka_partition = 99",
    # These are the only ones of their lanes, and their keys go on without them.
    "topic name": "kafka_topic = 'no topic'",
    "unknown topic": "kafka_topic = 'missing-' || gen_random_uuid()",
    "too large for the broker": """kafka_topic = replace(kafka_topic, 'data', 'plain'),
        kafka_value = (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 60000))""",
}
"""The change of the record that begins a key's second half."""
STRAYED = 3
COUNT = "SELECT count(*) FROM outbox_parked"
MENDED = """UPDATE outbox_parked SET kafka_header_values = kafka_header_keys, kafka_value = n, kafka_partition = NULL,
    kafka_topic = topic, requested = 'retry'
FROM (SELECT number, kafka_header_keys[1] AS n, %(topic)s AS topic FROM outbox_parked) AS was
WHERE was.number = outbox_parked.number"""


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    outbox.settings["kafka"]["message.max.bytes"] = 3_000_000  # what is above that does not get as far as the broker
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([outbox.topic])[outbox.topic].result()
    topic = NewTopic(outbox.topic, PARTITIONS, 1, config={"max.message.bytes": str(MAX_MESSAGE_BYTES)})
    wait_until(lambda: _made(admin, topic))
    assert _made(admin, NewTopic(topic_prefix + "plain", PARTITIONS, 1))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER TABLE outbox ALTER kafka_value TYPE text")
        connection.execute("ALTER TABLE outbox_parked ALTER kafka_value TYPE text")
        connection.execute(
            """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
            SELECT %(topic)s, 'k' || place %% %(keys)s, place::text, ARRAY[place::text], ARRAY[place::text]
            FROM generate_series(0, %(records)s - 1) AS place""",
            {"topic": outbox.topic, "keys": KEYS, "records": RECORDS},
        )
        for key, change in enumerate(POISON.values()):
            first = (
                f"SELECT id FROM outbox WHERE kafka_key = 'k{key}' ORDER BY id OFFSET {RECORDS // KEYS // 2} LIMIT 1"
            )
            connection.execute(f"UPDATE outbox SET {change} WHERE id = ({first})")  # type: ignore[arg-type]
    return outbox


def _made(admin: AdminClient, topic: NewTopic) -> bool:
    return admin.create_topics([topic])[topic.topic].exception() is None


@pytest.fixture
def file(outbox: Outbox, tmp_path: Path) -> Path:
    path = tmp_path / "outbox.yaml"
    path.write_text(yaml.safe_dump({**outbox.settings, "limits": {"batch_records": 500, **SHORT_SESSION}}))
    return path


def test_poison_of_each_kind_under_kill_9(outbox: Outbox, file: Path) -> None:
    whole = {f"k{key}": list(range(key, RECORDS, KEYS)) for key in range(KEYS)}
    with psycopg.connect(outbox.database) as locking:  # a leader that is killed late still has its last batch to purge
        locking.execute("SELECT FROM outbox ORDER BY id DESC LIMIT 1 FOR UPDATE")
        for left in (RECORDS * 9 // 10, RECORDS * 6 // 10, RECORDS * 3 // 10):
            process = Process([*COMMAND, "harvest", "-f", str(file)])
            wait_until(lambda at_most=left: outbox.left() < at_most)  # type: ignore[misc]
            process.end()
    process = Process([*COMMAND, "harvest", "-f", str(file)])
    try:
        wait_until(lambda: outbox.left() == 0)
        causes = "SELECT cause FROM outbox_parked WHERE cause IS NOT NULL ORDER BY 1"
        expected = ["headers", "headers", "partition", "too_large", "too_large", "topic_name", "unknown_topic"]
        # A topic whose look-up takes long is set aside as untried before.
        wait_until(
            lambda: [cause for (cause,) in outbox.query(causes)] == expected, doing=lambda: str(outbox.query(causes))
        )
        half = RECORDS // KEYS // 2
        stays = len(POISON) - STRAYED
        strayed = {key: whole[key].pop(half) for key in (f"k{place}" for place in range(stays, len(POISON)))}
        stopped = {f"k{key}": whole[f"k{key}"][:half] for key in range(stays)}
        assert outbox.by_key() == {**whole, **stopped}
        with psycopg.connect(outbox.database, autocommit=True) as connection:
            waiting = outbox.query(COUNT)
            connection.execute(MENDED, {"topic": outbox.topic})
        wait_until(lambda: outbox.query(COUNT) < waiting)  # some are retried
        process.end()
        process = Process([*COMMAND, "harvest", "-f", str(file)])
        parked = "SELECT number, cause, reason, requested, retry_at, attempts FROM outbox_parked ORDER BY 1"
        wait_until(
            lambda: outbox.query(parked) == [],
            doing=lambda: f"retrying {outbox.query(parked)[:3]}: {process.events[-3:]}",
        )
        for key, record in strayed.items():
            whole[key].append(record)
        assert outbox.by_key() == whole
    finally:
        process.end()
