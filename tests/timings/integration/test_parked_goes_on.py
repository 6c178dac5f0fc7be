"""How much of a processor Postgres needs to find parked records that go on."""

from __future__ import annotations

from typing import Any

import psutil
import psycopg
import pytest
from integration.many_parked import due, of_a_topic_half_of_whose_keys_wait, of_a_topic_that_was_missing, released

pytestmark = pytest.mark.timed

MOST_SECONDS = 5.0
"""To compare each row with each key takes 15."""


def processor_seconds(connection: psycopg.Connection[Any]) -> float:
    """The processor time of the connection's backend so far: others that are busy hardly change it."""
    times = psutil.Process(connection.info.backend_pid).cpu_times()
    return float(times.user + times.system)


def test_many_keys_that_go_on_at_once_are_found_soon(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        parked, view = of_a_topic_that_was_missing(connection)
        began = processor_seconds(connection)
        released(connection, parked, view)
        assert processor_seconds(connection) - began < MOST_SECONDS


def test_a_topic_that_goes_on_past_many_keys_that_wait_is_found_soon(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        parked = of_a_topic_half_of_whose_keys_wait(connection)
        began = processor_seconds(connection)
        due(parked)
        assert processor_seconds(connection) - began < MOST_SECONDS
