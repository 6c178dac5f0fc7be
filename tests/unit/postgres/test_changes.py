"""When a reading need not be made, and when a wait for one ends."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from psycopg.pq import ExecStatus

from airflow_outbox.postgres.changes import Changes
from airflow_outbox.values.pages import Page, PageSnapshot
from airflow_outbox.values.records import Snapshot

THEN = Snapshot(7, 9, frozenset({7}))
SAME, NEXT = "7:9:7", "9:9:"
FAILED = ("", 0)
NEXT_WINDOW = PageSnapshot(after=THEN)


def changes(*answers: tuple[str, int], flushed: int = 100) -> Changes:
    """Postgres gives these answers to the looks, in turn: what it sees, and how far its log is on disk."""
    given = iter(answers)

    def look(*_: object) -> object:
        values = next(given)
        status = ExecStatus.FATAL_ERROR if values == FAILED else ExecStatus.TUPLES_OK
        return SimpleNamespace(status=status, get_value=lambda _, column: str(values[column]).encode())

    connection: Any = SimpleNamespace(pgconn=SimpleNamespace(prepare=lambda *_: None, exec_prepared=look))
    found = Changes(connection, b"")
    row = (1, "t", None, None, None, None, None, 1, None)
    found.seen(Page([row], THEN, False, written=100, flushed=flushed, table_oid=1, file_number=2, last_drawn=3))
    return found


def test_a_window_in_which_nothing_ended_is_not_read() -> None:
    assert changes((SAME, 120)).nothing_since(NEXT_WINDOW, wait=0, interval=0) == Page(
        (), THEN, True, written=100, flushed=120, table_oid=1, file_number=2, last_drawn=3
    )


def test_a_window_is_read_once_a_transaction_has_ended() -> None:
    assert changes((SAME, 100), (NEXT, 100)).nothing_since(NEXT_WINDOW, wait=60, interval=0) is None


def test_a_look_that_fails_leaves_it_to_the_reading() -> None:
    assert changes(FAILED).nothing_since(NEXT_WINDOW, wait=60, interval=0) is None


def test_the_rest_of_a_window_and_the_whole_table_are_always_read() -> None:
    for reading in (PageSnapshot(), PageSnapshot(after=THEN, within=THEN, above=4)):
        assert changes().nothing_since(reading, wait=60, interval=0) is None


def test_a_wait_ends_when_the_last_page_is_on_disk() -> None:
    found = changes((SAME, 90), (SAME, 100), flushed=80).nothing_since(NEXT_WINDOW, wait=60, interval=0)
    assert found is not None
    assert found.flushed == 100


def test_a_wait_ends_with_its_time() -> None:
    began = time.monotonic()
    assert changes(*[(SAME, 100)] * 100).nothing_since(NEXT_WINDOW, wait=0.01, interval=0.005) is not None
    assert time.monotonic() - began >= 0.01
