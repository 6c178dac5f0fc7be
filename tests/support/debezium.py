"""Debezium outbox tables under test: made from a case, filled, and what a consumer sees of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from psycopg import sql
from support.debezium_cases import PARTITIONS, Case
from support.harvesting import PATIENCE

from airflow_outbox.harvest.kafka.partitioner import murmur2
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

RECORDS = Path(__file__).with_name("debezium_records.json")
"""What a real Debezium published of every case: `tests/integration/debezium/test_real_debezium.py` records it."""

EVENTS = (
    "CREATE TABLE events (id bigint PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, payload text)"
)
"""An application's table, in which `Writers` write."""
WRITERS = 4
BETWEEN = 40
"""How many transactions of writers end between two steps."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as a consumer sees it."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

    def as_json(self) -> list[Any]:
        headers = [[name, _shown(value)] for name, value in self.headers]
        return [self.topic, self.partition, _shown(self.key), _shown(self.value), headers]

    @classmethod
    def of_json(cls, found: Any) -> Sent:
        topic, partition, key, value, headers = found
        return cls(topic, partition, _read(key), _read(value), [(name, _read(each)) for name, each in headers])


def _shown(value: bytes | None) -> str | dict[str, str] | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _read(value: Any) -> bytes | None:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else None if value is None else value.encode()


def recorded(case: Case) -> list[Sent]:
    """What Debezium published of a case."""
    return [Sent.of_json(each) for each in json.loads(RECORDS.read_text("utf-8"))[case.name]]


def make_table(connection: psycopg.Connection[Any], case: Case) -> str:
    """Make the case's table, and an outbox for it; return the outbox's name."""
    outbox = f"stashed_{case.name}"
    if case.types:
        execute(connection, case.types, case)
    execute(connection, f"CREATE TABLE {{table}} {case.columns}", case)
    init_outbox(connection, OutboxName.parse(outbox), key_type="text", value_type=case.value_type)
    return outbox


def insert_rows(connection: psycopg.Connection[Any], case: Case) -> None:
    for statement in case.statements:
        text, values = (statement, None) if isinstance(statement, str) else statement
        with connection.transaction():
            for each in [text] if values else text.split("; "):
                execute(connection, each, case, values)


def execute(connection: psycopg.Connection[Any], text: str, case: Case, values: Sequence[Any] | None = None) -> None:
    filled = text.replace("{table}", case.table).replace("{{", "{").replace("}}", "}")
    connection.execute(cast("Any", filled if values is not None else filled.replace("%%", "%")), values)


def stashed(connection: psycopg.Connection[Any], outbox: str) -> list[Sent]:
    """What a harvester would publish, by topic and partition."""
    columns = "kafka_topic, kafka_partition, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
    query = sql.SQL(cast("Any", f"SELECT {columns} FROM {{}} ORDER BY id")).format(sql.Identifier(outbox))
    found = []
    for topic, partition, key, value, names, values in connection.execute(query):
        headers = [(name, _as_bytes(each)) for name, each in zip(names, values, strict=True)]
        place = partition if partition is not None else murmur2(key.encode()) % PARTITIONS
        found.append(Sent(topic, place, _as_bytes(key), _as_bytes(value), headers))
    return in_order(found)


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def in_order(records: Iterable[Sent]) -> list[Sent]:
    """By topic and partition; in each, as they came."""
    return sorted(records, key=lambda each: (each.topic, each.partition))


def read_topics(bootstrap: str, topics: Sequence[str]) -> list[Sent]:
    """All records of topics that a read-committed consumer sees now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found = []
    try:
        unread = {(topic, number) for topic in topics for number in range(PARTITIONS)}
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in unread])
        while unread:
            for message in consumer.consume(1000, timeout=0.1):
                error = message.error()
                if error is None:
                    found.append(_sent(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((message.topic(), message.partition()))
                else:
                    raise AssertionError(error)
    finally:
        consumer.close()
    return in_order(found)


def _sent(message: Any) -> Sent:
    return Sent(message.topic(), message.partition(), message.key(), message.value(), message.headers() or [])


def wait_for(what: Callable[[], bool], *, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


class Writers:
    """Applications that insert rows, one transaction after the other, and delete some of them at once."""

    def __init__(self, database: str) -> None:
        self.committed: list[int] = []
        self._database = database
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=[number]) for number in range(WRITERS)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def go_on(self) -> None:
        """Wait until they have written more."""
        before = len(self.committed)
        wait_for(lambda: len(self.committed) >= before + BETWEEN)

    def _write(self, writer: int) -> None:
        with psycopg.connect(self._database) as connection:
            for number in range(1_000_000):
                if self._stop.wait(0.002):
                    return
                row = number * WRITERS + writer
                connection.execute("INSERT INTO events VALUES (%s, 'events', %s, %s)", (row, str(writer), str(row)))
                if number % 3 == 0:
                    connection.execute("DELETE FROM events WHERE id = %s", [row])
                if number % 7 == 6:
                    connection.rollback()
                    continue
                connection.commit()
                self.committed.append(row)
