"""The judge itself, on histories that are right and on broken ones."""

from __future__ import annotations

import pytest
from faults.checker import Judgement, Lane, Sighting, came_back, judge
from hypothesis import given
from hypothesis import strategies as st

LANE: Lane = ("t", "k")


def verdict(*records: int) -> Judgement:
    """The verdict on a history in which 0, 1, 2 were stashed in one lane and these were seen."""
    return judge({LANE: [0, 1, 2]}, [Sighting(LANE, record) for record in records])


@pytest.mark.parametrize(
    ("seen", "duplicates"),
    [((0, 1, 2), 0), ((0, 0, 1, 2), 1), ((0, 1, 0, 2), 1), ((0, 1, 0, 1, 2, 2), 3), ((0, 1, 2, 0, 1, 2), 3)],
)
def test_what_only_repeats_what_was_seen_is_right(seen: tuple[int, ...], duplicates: int) -> None:
    assert verdict(*seen) == Judgement(duplicates=duplicates)


@pytest.mark.parametrize(
    ("seen", "lost", "out_of_order", "foreign"),
    [
        ((), 3, 0, 0),
        ((0, 2), 1, 0, 0),
        ((1, 2), 1, 0, 0),
        ((0, 0, 1, 1), 1, 0, 0),
        ((1, 0, 2), 0, 1, 0),
        ((0, 2, 1), 0, 1, 0),
        ((2, 1, 0), 0, 2, 0),
        ((0, 2, 0, 1), 0, 1, 0),
        ((0, 1, 2, 3), 0, 0, 1),
        ((3, 0, 2), 1, 0, 1),
    ],
)
def test_broken_histories_are_found(seen: tuple[int, ...], lost: int, out_of_order: int, foreign: int) -> None:
    found = verdict(*seen)
    assert (len(found.lost), len(found.out_of_order), len(found.foreign)) == (lost, out_of_order, foreign)
    assert found.complaints


def test_lanes_have_no_order_between_them() -> None:
    other: Lane = ("t", "other")
    seen = [Sighting(other, 1), Sighting(LANE, 0), Sighting(LANE, 2)]
    assert judge({LANE: [0, 2], other: [1]}, seen) == Judgement()
    assert judge({LANE: [0, 1, 2], other: []}, seen).foreign == ("1 of ('t', 'other')",)
    assert judge({LANE: [0, 2]}, seen).foreign == ("1 of ('t', 'other')",)


def test_the_order_is_that_of_stashing_not_of_the_numbers() -> None:
    assert judge({LANE: [7, 3]}, [Sighting(LANE, 7), Sighting(LANE, 3)]) == Judgement()
    assert judge({LANE: [7, 3]}, [Sighting(LANE, 3), Sighting(LANE, 7)]).out_of_order


def test_a_key_that_moves_to_another_partition_is_out_of_order() -> None:
    assert judge({LANE: [0, 1]}, [Sighting(LANE, 0, 1), Sighting(LANE, 1, 2)]).out_of_order


@pytest.mark.parametrize(
    ("leaders", "found"), [("", ""), ("aaabbc", ""), ("aabba", "a"), ("abab", "ab"), ("abcb", "b"), ("abbacc", "a")]
)
def test_a_leader_that_acts_after_its_successor_is_found(leaders: str, found: str) -> None:
    assert came_back(leaders) == list(found)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_it_agrees_with_a_slow_and_plain_judge(seen: list[int]) -> None:
    stashed = list(range(6))
    found = judge({LANE: stashed}, [Sighting(LANE, record) for record in seen])
    firsts = list(dict.fromkeys(seen))
    assert len(found.lost) == 6 - len(firsts)
    assert bool(found.out_of_order) == (firsts != sorted(firsts))
    assert found.duplicates == len(seen) - len(firsts)
