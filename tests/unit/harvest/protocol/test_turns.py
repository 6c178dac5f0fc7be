"""Producers that take turns prove each other's commits."""

from __future__ import annotations

import pytest

from airflow_outbox.harvest.protocol.turns import Turns
from airflow_outbox.values.extents import TopicAndPartition

HERE: TopicAndPartition = ("here", 0)
THERE: TopicAndPartition = ("there", 3)


def test_producers_take_turns() -> None:
    turns = Turns(3)
    assert [turns.begin() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("producers", [1, 2, 3])
def test_the_next_transaction_of_the_same_producer_tells_that_the_last_one_is_readable(producers: int) -> None:
    turns = Turns(producers)
    for number in range(1, 10):
        turns.begin()
        turns.taken(number)
        assert turns.readable == max(0, number - producers)
        turns.committed({HERE: number})
        assert turns.readable == max(0, number - producers)


def test_a_commit_counts_when_those_before_it_do() -> None:
    turns = Turns(2)
    for ends in ({HERE: 5, THERE: 7}, {HERE: 9}):
        turns.begin()
        turns.committed(ends)
    assert turns.waiting == {HERE: 9, THERE: 7}
    turns.stable({HERE: 10, THERE: 7})
    assert turns.readable == 0
    assert turns.waiting == {HERE: 5, THERE: 7}
    turns.stable({THERE: 8})
    assert turns.readable == 0
    turns.stable({HERE: 6, THERE: 8})
    assert turns.readable == 2
    assert turns.waiting == {}


def test_a_partition_that_does_not_answer_proves_nothing() -> None:
    turns = Turns(1)
    turns.begin()
    turns.committed({HERE: 0})
    turns.stable({})
    assert turns.readable == 0
    assert turns.is_unproven(0)


def test_a_producer_that_was_initialised_again_tells_of_its_own_commits() -> None:
    turns = Turns(2)
    for number in range(3):
        turns.begin()
        turns.committed({HERE: number})
    turns.initialised(0)
    assert (turns.readable, turns.is_unproven(0), turns.is_unproven(1)) == (1, False, True)
    turns.initialised(1)
    assert turns.readable == 3


def test_a_commit_without_records_is_readable() -> None:
    turns = Turns(2)
    turns.begin()
    turns.committed({})
    assert turns.readable == 1
