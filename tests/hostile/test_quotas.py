"""A quota on what the producers send: they use it, the leader goes on leading, and an operator is told of it."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import psycopg
import pytest
from hostile.innocents import Innocents

from airflow_outbox.demo.embedded.java import find_java
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

pytestmark = pytest.mark.alone

RATE = 500_000
"""Bytes a second."""
WINDOW = 10.0
"""Seconds over which a broker takes the mean: so much may come at once."""
RECORDS, SIZE = 24_000, 1_000
LEAST_USED = 0.9
"""Of the quota."""


def set_quota(kafka: EmbeddedKafka, classpath: str, *, client_id: str) -> None:
    arguments = ["--alter", "--entity-type", "clients", "--entity-name", client_id]
    arguments += ["--add-config", f"producer_byte_rate={RATE}"]
    command = [str(find_java()), "-cp", classpath, "kafka.admin.ConfigCommand", "--bootstrap-server", kafka.bootstrap]
    subprocess.run([*command, *arguments], check=True, capture_output=True, timeout=60)


def verdict(innocents: Innocents) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(innocents.command("status", "--output", "json"))["verdict"]
    return found


@pytest.mark.parametrize("mode", ["single"])
def test_a_quota_is_used_and_unseats_nobody(innocents: Innocents, kafka: EmbeddedKafka, kafka_classpath: str) -> None:
    outbox = innocents.outbox
    client_id = outbox.topic
    set_quota(kafka, kafka_classpath, client_id=client_id)
    outbox.settings["kafka"]["client.id"] = client_id
    with innocents.harvested(kafka_producer={"compression.type": "none"}) as process:
        with psycopg.connect(outbox.database, autocommit=True) as connection:
            connection.execute(
                """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
                SELECT %s, 'h' || number %% 100, repeat('x', %s), '{}', '{}' FROM generate_series(1, %s) AS number""",
                (outbox.topic, SIZE, RECORDS),
            )
        began = time.monotonic()
        innocents.wait_until(lambda: outbox.written() * SIZE > RATE * WINDOW * 1.5, "nothing is sent", within=60)
        innocents.wait_until(lambda: client_id in verdict(innocents)["cause"], "no verdict names the quota")
        assert verdict(innocents)["state"] == "lagging"
        already, since = outbox.written(), time.monotonic()
        innocents.wait_until(lambda: outbox.written() >= RECORDS, "what is sent waits", within=120)
        used = (RECORDS - already) * SIZE / (time.monotonic() - since) / RATE
        innocents.wait_until(lambda: outbox.left() == 0, "the backlog waits", within=60)
        assert time.monotonic() - began > RECORDS * SIZE / RATE - WINDOW, "the quota was not in force"
        told = process.wait_for("throttled", client_id=client_id)
        assert told["seconds"] > 0
        unseated = [event for event in process.events if event["event"] in ("stood_by", "error", "elected")][1:]
        assert not unseated, unseated
        assert used > LEAST_USED, f"{used:.0%} of the quota was used"
        innocents.around(lambda: None)
        innocents.stand(named=None)
        innocents.wait_until(lambda: verdict(innocents)["state"] == "healthy", "the verdict stays", within=30)
        innocents.wait_until(lambda: outbox.query("SELECT FROM outbox_trouble") == [], "the quota stays", within=30)
