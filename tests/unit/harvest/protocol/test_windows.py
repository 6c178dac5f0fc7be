"""Snapshots and windows: each transaction's records lie in exactly one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.windows import Windows
from airflow_outbox.values.pages import PageSnapshot
from airflow_outbox.values.records import Snapshot


def test_a_snapshot_reads_and_writes_as_postgres_does() -> None:
    assert str(Snapshot.parse("10:20:10,14")) == "10:20:10,14"
    assert Snapshot.parse("10:10:") == Snapshot(10, 10)


def test_a_snapshot_sees_what_had_ended() -> None:
    snapshot = Snapshot.parse("10:20:10,14")
    assert [number for number in range(8, 22) if snapshot.sees(number)] == [8, 9, 11, 12, 13, 15, 16, 17, 18, 19]


def test_pages_of_a_window_keep_its_first_snapshot() -> None:
    windows = Windows()
    first, second, third = Snapshot(5, 5), Snapshot(7, 7), Snapshot(9, 9)
    assert windows.next == PageSnapshot()
    assert windows.advance(snapshot=first, last_id=10, complete=False) == first
    assert windows.next == PageSnapshot(after=None, within=first, above=10)
    assert windows.advance(snapshot=second, last_id=12, complete=True) == first
    assert windows.next == PageSnapshot(after=first)
    assert windows.advance(snapshot=third, last_id=None, complete=True) == third
    assert windows.next == PageSnapshot(after=third)


@given(st.data())
def test_every_transaction_is_in_exactly_one_window(data: st.DataObject) -> None:
    transactions = list(range(1, 12))
    running: set[int] = set()
    begun = 0
    windows, found = Windows(), []
    for _ in range(data.draw(st.integers(3, 12))):
        more = data.draw(st.integers(0, 3))
        running |= set(transactions[begun : begun + more])
        begun = min(begun + more, len(transactions))
        running -= data.draw(st.sets(st.sampled_from(sorted(running)))) if running else set()
        xmax = begun + 1
        snapshot = Snapshot(min(running, default=xmax), xmax, frozenset(running))
        after = windows.next.after
        found += [n for n in transactions if snapshot.sees(n) and not (after is not None and after.sees(n))]
        windows.advance(snapshot=snapshot, last_id=None, complete=True)
    assert sorted(found) == [n for n in transactions[:begun] if n not in running]
