"""How much of a quota on what the producers send is used, and how soon an operator is told of it."""

from __future__ import annotations

import time

import pytest
from hostile.innocents import Innocents
from hostile.quota import ALL_USERS, RATE, RECORDS, SIZE, UNCOMPRESSED, WINDOW, quota, unseated, verdict, write_much

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

pytestmark = pytest.mark.timed

LEAST_USED = 0.9
"""The share of the quota that is used at least, from the first record to the last one."""
TOLD_WITHIN = 10
A_LITTLE = 0.5
"""Seconds that the machine may add."""


@pytest.mark.long
@pytest.mark.parametrize("of_users", [False, True], ids=["of a client id", "of users"])
@pytest.mark.parametrize("mode", ["single"])
def test_a_quota_is_used_and_unseats_nobody(
    innocents: Innocents, kafka: EmbeddedKafka, kafka_classpath: str, of_users: bool
) -> None:
    outbox = innocents.outbox
    entity = ALL_USERS if of_users else ("clients", "--entity-name", outbox.topic)
    outbox.settings["kafka"]["client.id"] = outbox.topic
    with quota(kafka, kafka_classpath, *entity), innocents.harvested(kafka_producer=UNCOMPRESSED) as process:
        write_much(outbox)
        began = time.monotonic()
        innocents.wait_until(lambda: outbox.written() >= RECORDS, "what is sent waits")
        seconds = time.monotonic() - began  # a part tells little: megabytes come at once, then nothing for as long
        assert seconds > RECORDS * SIZE / RATE - WINDOW, "the quota was not in force"
        assert not unseated(process), innocents.story()
        used = RECORDS * SIZE / seconds / RATE
        assert used > LEAST_USED, f"{used:.0%} of the quota was used"


@pytest.mark.parametrize("of_users", [False, True], ids=["of a client id", "of users"])
@pytest.mark.parametrize("mode", ["single"])
def test_an_operator_is_told_within_ten_seconds(
    innocents: Innocents, kafka: EmbeddedKafka, kafka_classpath: str, of_users: bool
) -> None:
    """From the first answer in which Kafka says that it holds records back."""
    outbox = innocents.outbox
    entity = ALL_USERS if of_users else ("clients", "--entity-name", outbox.topic)
    outbox.settings["kafka"]["client.id"] = outbox.topic
    with quota(kafka, kafka_classpath, *entity), innocents.harvested(kafka_producer=UNCOMPRESSED) as process:
        write_much(outbox)

        def is_told() -> bool:
            found = verdict(innocents)
            return found["state"] == "lagging" and outbox.topic in found["cause"]

        process.wait_for("throttled", client_id=outbox.topic)
        began = time.monotonic()
        innocents.wait_until(is_told, "no verdict names the quota")
        took = time.monotonic() - began
        print(f"{took=:.1f}")
        assert outbox.left() > 0, "nothing waits"
        assert took <= TOLD_WITHIN + A_LITTLE
