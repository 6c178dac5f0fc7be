"""How many rows a page asks for, so that it stays within its bytes whatever their sizes."""

from __future__ import annotations

import random

import pytest

from airflow_outbox.values.pages import SIZE, OutboxRow, PageSize, total_size

ROOM = 100_000


def rows(sizes: list[int]) -> list[OutboxRow]:
    return [(number, "t", "k", None, [], [], None, size, None) for number, size in enumerate(sizes)]


def pages(sizes: list[int], *, max_records: int = 1000) -> list[list[int]]:
    """The sizes of the rows of each page."""
    left, page_size, found = rows(sizes), PageSize(), []
    while left:
        records, share = page_size.shares(max_records=max_records, max_bytes=ROOM)
        assert 0 < records <= max_records
        assert records == 1 or records * share <= ROOM
        fitting = page_size.fitting(left[:records], share=share, max_bytes=ROOM)
        if fitting:
            found.append([row[SIZE] for row in fitting])
            left = left[len(fitting) :]
    return found


def test_rows_that_are_small_come_as_many_as_are_wanted() -> None:
    assert [len(page) for page in pages([90] * 5000)] == [1000] * 5


def test_pages_grow_from_a_small_first_one() -> None:
    assert [len(page) for page in pages([1] * 60_000, max_records=20_000)] == [2500, 5000, 10_000, 20_000, 20_000, 2500]


@pytest.mark.parametrize("seed", range(50))
def test_every_row_comes_once_and_no_page_is_too_large(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice((0, 10, 100, 1000, 10_000, 3 * ROOM)) for _ in range(chance.randrange(500))]
    found = pages(sizes, max_records=chance.choice((1, 7, 1000)))
    assert [size for page in found for size in page] == sizes
    assert all(sum(page) <= ROOM or len(page) == 1 for page in found)


def test_large_rows_make_pages_smaller_and_small_ones_large_again() -> None:
    found = [len(page) for page in pages([10] * 2000 + [20_000] * 100 + [10] * 20_000)]
    assert found.count(4) >= 24
    assert found.count(1000) >= 18


def test_rows_that_are_nearly_alike_are_read_about_once() -> None:
    left, page_size, read = rows([1000 + number % 100 for number in range(10_000)]), PageSize(), 0
    while left:
        records, share = page_size.shares(max_records=1000, max_bytes=ROOM)
        read += min(records, len(left))
        left = left[len(page_size.fitting(left[:records], share=share, max_bytes=ROOM)) :]
    assert read <= 10_000 + 1000


def test_a_row_larger_than_all_the_room_comes_by_itself() -> None:
    assert pages([10, 10 * ROOM, 10]) == [[10], [10 * ROOM], [10]]


def test_no_room_at_all_still_lets_a_row_through() -> None:
    assert PageSize().shares(max_records=10, max_bytes=0)[0] == 1


def test_the_size_of_rows_is_the_sum_of_theirs() -> None:
    assert total_size(rows([1, 2, 3])) == 6
    assert total_size([]) == 0
