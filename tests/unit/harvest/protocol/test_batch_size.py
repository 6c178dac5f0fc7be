"""How much goes into a batch."""

from __future__ import annotations

from airflow_outbox.harvest.protocol.batch_size import Pace
from airflow_outbox.values.pages import OutboxRow, count_within

LONGEST = 5.0


def rate_of(pace: Pace, *, bytes_a_second: float, batches: int = 30) -> float:
    """How long the last of some batches takes that a broker takes in at this speed."""
    seconds = 0.0
    for _ in range(batches):
        size = pace.max_bytes
        seconds = size / bytes_a_second
        pace.took(size, seconds=seconds)
    return seconds


def test_batches_grow_as_long_as_they_are_sent_soon() -> None:
    pace = Pace(longest=LONGEST)
    first = pace.max_bytes
    pace.took(first, seconds=0.1)
    assert pace.max_bytes == 2 * first
    pace.took(10, seconds=0.1)  # a small one tells nothing
    assert pace.max_bytes == 2 * first


def test_batches_become_what_gets_through_in_time() -> None:
    for speed in (20_000, 500_000, 50_000_000):
        assert LONGEST / 4 < rate_of(Pace(longest=LONGEST), bytes_a_second=speed) <= LONGEST


def test_what_could_not_be_sent_in_time_is_divided_and_a_quick_failure_tells_nothing() -> None:
    pace = Pace(longest=LONGEST)
    before = pace.max_bytes
    pace.failed(before, seconds=0.1)
    assert pace.max_bytes == before
    pace.failed(before, seconds=60)
    assert pace.max_bytes == before // 4
    for _ in range(20):
        pace.failed(before, seconds=60)
    assert 0 < pace.max_bytes < before


def test_rows_within_a_size() -> None:
    rows: list[OutboxRow] = [(number, "t", "k", "v", [], [], None, 10, None) for number in range(5)]
    assert [count_within(rows, size) for size in (1, 10, 29, 30, 1000)] == [1, 1, 2, 3, 5]
