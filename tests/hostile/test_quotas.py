"""A quota on what the producers send: the leader goes on leading, and an operator is told of it."""

from __future__ import annotations

import time

import pytest
from hostile.innocents import Innocents
from hostile.quota import ALL_USERS, RATE, RECORDS, SIZE, UNCOMPRESSED, WINDOW, quota, unseated, verdict, write_much
from support.harvesting import Process

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

LESS_THAN_HEARTBEATS = 50
HELD_BACK = 8.0
"""Seconds: some times as long as a leader without heartbeats goes on."""
TRIES = 5
"""A busy machine unseats a leader at times; a quota would do it each time."""


def leads(process: Process) -> bool:
    return process.newest_progress.get("standing") == "leading"


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
def test_an_operator_is_told_of_a_quota_while_it_holds_records_back(
    innocents: Innocents, kafka: EmbeddedKafka, kafka_classpath: str, of_users: bool
) -> None:
    outbox = innocents.outbox
    client_id = outbox.topic
    entity = ALL_USERS if of_users else ("clients", "--entity-name", client_id)
    outbox.settings["kafka"]["client.id"] = client_id
    with quota(kafka, kafka_classpath, *entity), innocents.harvested(kafka_producer=UNCOMPRESSED) as process:
        write_much(outbox)
        innocents.wait_until(lambda: outbox.written() * SIZE > RATE * WINDOW * 1.5, "nothing is sent")

        def is_told() -> bool:
            found = verdict(innocents)
            return client_id in found["cause"] and found["state"] == "lagging"

        innocents.wait_until(is_told, "no verdict names the quota")
        innocents.wait_until(lambda: outbox.written() >= RECORDS, "what is sent waits")
        innocents.wait_until(lambda: outbox.left() == 0, "the backlog waits")
        told = process.wait_for("throttled", client_id=client_id)
        assert told["seconds"] > 0
        innocents.around(lambda: None)
        innocents.stand(named=None)
        innocents.wait_until(lambda: verdict(innocents)["state"] == "healthy", "the verdict stays")
        innocents.wait_until(lambda: outbox.query("SELECT FROM outbox_trouble") == [], "the quota stays")
