"""Operators' requests and the leader change the same parked records: neither stops the other for long, or for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from support.harvesting import wait_until

from airflow_outbox.operate.parked_requests import Choice, ParkedRequests
from airflow_outbox.operate.trail import read_trail
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.refusals import Cause, Refusal

NAME = OutboxName.parse("outbox")
NUMBERS = range(1, 10)
MIDDLE = 5
EVERYTHING = Choice(everything=True)
BACKWARDS = """
INSERT INTO outbox_parked (number, id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values,
    transaction_id, incarnation)
OVERRIDING SYSTEM VALUE
SELECT number, number, now(), 't', 10 - number, '{}', '{}', '3', 1 FROM generate_series(9, 1, -1) AS number
"""
"""The table, and the index by topic and key, have the records in the opposite order of their numbers."""

Act = Callable[[ParkedTable, UUID], Any]


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """The operator's, to an outbox with parked records."""
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME)
        connection.execute(BACKWARDS)
        yield connection


@pytest.fixture
def leader(database: str, connection: psycopg.Connection[Any]) -> Iterator[tuple[ParkedTable, UUID]]:
    with psycopg.connect(database, autocommit=True) as own:
        table, view = OutboxTable(own, NAME), uuid4()
        table.take_over(view, [table.backend()], member="test")
        yield ParkedTable(table), view


@contextmanager
def locked(database: str, number: int) -> Iterator[None]:
    """Somebody's transaction is open, and has locked a record."""
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM outbox_parked WHERE number = %s FOR UPDATE", [number])
        yield
        other.rollback()


def wait_for_lockers(database: str, number: int) -> None:
    """Wait until so many sessions wait for somebody else's lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(database, autocommit=True) as looking:
        wait_until(lambda: looking.execute(waiting).fetchone() == (number,), doing="waiting for a lock")


def refuse_all(parked: ParkedTable, view: UUID) -> None:
    missing = Refusal(Cause.UNKNOWN_TOPIC, "there is no such topic")
    parked.note_refusals(view, dict.fromkeys(reversed(NUMBERS[::2]), missing), others=NUMBERS[1::2])


ACTS: dict[str, Act] = {
    "release": lambda parked, view: parked.release(view, max_records=100),
    "note refusals": refuse_all,
    "discard": lambda parked, view: parked.discard_requested(view),
    "unpark": lambda parked, view: parked.unpark(view, NUMBERS),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_the_leader_and_an_operator_never_wait_for_each_other(
    database: str, connection: psycopg.Connection[Any], leader: tuple[ParkedTable, UUID], act: Act
) -> None:
    connection.execute("UPDATE outbox_parked SET requested = 'discard'" if act is ACTS["discard"] else "SELECT")
    with ThreadPoolExecutor(2) as pool:
        with locked(database, MIDDLE):
            asking = pool.submit(ParkedRequests(connection, NAME).ask, "retry", EVERYTHING)
            wait_for_lockers(database, 1)
            acting = pool.submit(act, *leader)
            wait_for_lockers(database, 2)
        assert asking.result() == len(NUMBERS)
        assert acting.result() in (None, False, [])  # what was to be discarded is to be retried now


def test_the_leader_waits_for_a_portion_of_what_an_operator_asks_for(
    database: str,
    connection: psycopg.Connection[Any],
    leader: tuple[ParkedTable, UUID],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_outbox.operate.parked_requests._MOST_CHANGED", 2)
    parked, view = leader
    with ThreadPoolExecutor(1) as pool:
        with locked(database, MIDDLE):
            asking = pool.submit(ParkedRequests(connection, NAME).ask, "retry", EVERYTHING)
            wait_for_lockers(database, 1)
            parked._connection.execute("SET lock_timeout = '1s'")
            parked.unpark(view, [*NUMBERS[: MIDDLE - 1], *NUMBERS[MIDDLE + 1 :]])
        assert asking.result() == MIDDLE + 1
    assert [each.records for each in read_trail(connection, NAME)] == [2, 2, 2]


def test_discarded_records_are_emptied_in_portions(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_outbox.operate.parked_requests._MOST_CHANGED", 4)
    connection.execute("UPDATE outbox_parked SET discarded_at = now(), purged_at = CASE WHEN number = 3 THEN now() END")
    assert ParkedRequests(connection, NAME).forget(EVERYTHING) == len(NUMBERS) - 1
    assert [each.records for each in read_trail(connection, NAME)] == [1, 4, 3]
    assert ParkedRequests(connection, NAME).forget(EVERYTHING) == 0
