"""A quota on what the producers send: they use it, the leader goes on leading, and an operator is told of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from hostile.innocents import Innocents
from support.harvesting import Process

from airflow_outbox.demo.embedded.java import find_java
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

pytestmark = pytest.mark.timed

RATE = 500_000
"""Bytes a second."""
WINDOW = 10.0
"""Seconds over which a broker takes the mean: so much may come at once."""
RECORDS, SIZE = 24_000, 1_000
ALL_USERS = ("users", "--entity-default")
LESS_THAN_HEARTBEATS = 50
HELD_BACK = 8.0
"""Seconds: some times as long as a leader without heartbeats goes on."""
TRIES = 5
"""A busy machine unseats a leader at times; a quota would do it each time."""
LEAST_USED = 0.9
"""The share of the quota that is used at least, from the first record to the last one."""


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


def leads(process: Process) -> bool:
    return process.newest_progress.get("standing") == "leading"


def verdict(innocents: Innocents) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(innocents.command("status", "--output", "json"))["verdict"]
    return found


@pytest.mark.parametrize("mode", ["single"])
def test_heartbeats_that_a_quota_of_the_user_holds_back_unseat_nobody(
    innocents: Innocents, kafka: EmbeddedKafka, kafka_classpath: str
) -> None:
    """The elections' clients have another client id than the producers, and the same user."""
    with innocents.harvested() as process:
        for _ in range(TRIES):
            innocents.wait_until(lambda: leads(process), "nobody leads")
            before = len(process.events)
            with quota(kafka, kafka_classpath, *ALL_USERS, rate=LESS_THAN_HEARTBEATS):
                time.sleep(HELD_BACK)
            if not unseated(process, since=before):
                break
        else:
            pytest.fail(innocents.story())
        innocents.around(lambda: None)


@pytest.mark.long
@pytest.mark.parametrize("of_users", [False, True], ids=["of a client id", "of users"])
@pytest.mark.parametrize("mode", ["single"])
def test_a_quota_is_used_and_unseats_nobody(
    innocents: Innocents, kafka: EmbeddedKafka, kafka_classpath: str, of_users: bool
) -> None:
    outbox = innocents.outbox
    client_id = outbox.topic
    entity = ALL_USERS if of_users else ("clients", "--entity-name", client_id)
    outbox.settings["kafka"]["client.id"] = client_id
    with (
        quota(kafka, kafka_classpath, *entity),
        innocents.harvested(kafka_producer={"compression.type": "none"}) as process,
    ):
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
        innocents.wait_until(lambda: outbox.written() >= RECORDS, "what is sent waits", within=120)
        seconds = time.monotonic() - began  # a part tells little: megabytes come at once, then nothing for as long
        innocents.wait_until(lambda: outbox.left() == 0, "the backlog waits", within=60)
        assert seconds > RECORDS * SIZE / RATE - WINDOW, "the quota was not in force"
        told = process.wait_for("throttled", client_id=client_id)
        assert told["seconds"] > 0
        assert not unseated(process), innocents.story()
        used = RECORDS * SIZE / seconds / RATE
        assert used > LEAST_USED, f"{used:.0%} of the quota was used"
        innocents.around(lambda: None)
        innocents.stand(named=None)
        innocents.wait_until(lambda: verdict(innocents)["state"] == "healthy", "the verdict stays", within=30)
        innocents.wait_until(lambda: outbox.query("SELECT FROM outbox_trouble") == [], "the quota stays", within=30)
