"""A quota on what is sent to a broker, and outboxes that meet it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from hostile.innocents import Innocents
from support.harvesting import Outbox, Process

from airflow_outbox.demo.embedded.java import find_java
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

RATE = 500_000
"""Bytes a second."""
WINDOW = 10.0
"""Seconds over which a broker takes the mean: so much may come at once."""
RECORDS, SIZE = 24_000, 1_000
ALL_USERS = ("users", "--entity-default")
UNCOMPRESSED = {"compression.type": "none"}


@contextmanager
def quota(kafka: EmbeddedKafka, classpath: str, *entity: str, rate: int = RATE) -> Iterator[None]:
    """So many bytes a second for what is sent by a client id, or by all users."""
    command = [str(find_java()), "-cp", classpath, "kafka.admin.ConfigCommand", "--bootstrap-server", kafka.bootstrap]

    def alter(*change: str) -> None:
        arguments = ["--alter", "--entity-type", *entity, *change]
        subprocess.run([*command, *arguments], check=True, capture_output=True, timeout=300)

    alter("--add-config", f"producer_byte_rate={rate}")
    try:
        yield
    finally:
        alter("--delete-config", "producer_byte_rate")


def unseated(process: Process, *, since: int = 0) -> list[dict[str, Any]]:
    """The events by which a leader has lost its role, or a term; `since`: it had announced so many events before."""
    lost = [event for event in process.events[since:] if event["event"] == "stood_by"]
    return lost + [event for event in process.failures if event in process.events[since:]]


def verdict(innocents: Innocents) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(innocents.command("status", "--output", "json"))["verdict"]
    return found


def write_much(outbox: Outbox) -> None:
    """So much that it takes the quota's rate many windows."""
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        connection.execute(
            """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
            SELECT %s, 'h' || number %% 100, repeat('x', %s), '{}', '{}' FROM generate_series(1, %s) AS number""",
            (outbox.topic, SIZE, RECORDS),
        )
