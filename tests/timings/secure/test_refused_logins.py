"""A login that Kafka refuses: how soon operators know from Postgres."""

from __future__ import annotations

import pytest
from secure.conftest import MakeOutbox, Start
from support.harvesting import wait_until

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.values.verdict import State

pytestmark = pytest.mark.timed

SOON = 3.0
A_LITTLE = 0.5
"""Seconds that the machine may add to the best of three times."""


def test_it_is_known_within_three_seconds_of_the_brokers_return(make_outbox: MakeOutbox, start: Start) -> None:
    """Connections that are there stay when a password is changed: a restart of the broker ends them."""
    outbox = make_outbox()
    config = HarvestConfig.validated(outbox.settings, source="test")
    process = start(outbox, child=True)
    took: list[float] = []
    while len(took) < 3 and min(took, default=SOON + 1) > SOON + A_LITTLE:
        wait_until(lambda: read_verdict(config).state is State.HEALTHY, doing=lambda: str(process.events))
        outbox.kafka.add_user(outbox.user, "another")
        outbox.kafka.server.restart()
        took.append(wait_until(lambda: "Kafka refuses the login at" in read_verdict(config).cause))
        outbox.kafka.add_user(outbox.user, "pässword")
    print(f"{took=}")
    assert min(took) <= SOON + A_LITTLE, took
