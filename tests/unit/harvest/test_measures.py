"""A member measures its own harvest."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_outbox.harvest.measures import OTHERS, Measures, Summary
from airflow_outbox.values.metrics import Stage


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def measures(clock: Clock) -> Measures:
    return Measures(clock)


def test_quantiles() -> None:
    summary = Summary()
    assert summary.quantiles(0.5, 0.99, at=0) == []
    for number in range(1, 101):
        summary.observe(float(number), at=0)
    assert summary.quantiles(0.5, 0.99, 1, at=0) == [50, 99, 100]
    assert (summary.count, summary.sum) == (100, 5050)


def test_a_large_batch_weighs_more_than_a_small_one() -> None:
    summary = Summary()
    summary.observe(1.0, at=0, weight=98)
    summary.observe(9.0, at=0, weight=2)
    assert summary.quantiles(0.5, 0.98, 0.99, at=0) == [1, 1, 9]
    assert (summary.count, summary.sum) == (100, 98 + 18)


def test_quantiles_are_of_the_last_minute_and_bounded_and_sums_are_of_all() -> None:
    summary = Summary()
    summary.observe(5.0, at=0)
    summary.observe(1.0, at=50)
    assert summary.quantiles(0.99, at=60) == [5]
    assert summary.quantiles(0.99, at=60.1) == [1]
    assert summary.quantiles(0.99, at=111) == []
    assert summary.sum == 6
    for _ in range(5_000):
        summary.observe(2.0, at=0)
    assert len(summary._recent) == 1_000


def test_a_take_over_lasts_from_the_election_or_the_last_term(measures: Measures, clock: Clock) -> None:
    measures.elected()
    clock.now += 0.5
    measures.term_ended()  # the first take-over failed
    clock.now += 0.25
    assert measures.took_over() == measures.take_over == 0.75
    assert measures.leads
    clock.now += 60
    measures.term_ended()
    assert not measures.leads
    clock.now += 0.1
    measures.term_ended()
    clock.now += 0.1
    assert measures.took_over() == 0.2
    assert measures.elections == 1


def test_published_records_by_topic(measures: Measures) -> None:
    measures.publishes(Counter(a=2, b=1))
    assert measures.take_recent() == {"a": 2, "b": 1}
    measures.publishes(Counter(a=3))
    assert (measures.published, measures.topics) == (6, {"a": 5, "b": 1})
    assert measures.take_recent() == {"a": 3}
    assert measures.take_recent() == {}
    assert (measures.published, measures.topics) == (6, {"a": 5, "b": 1})


def test_many_topics_take_a_bounded_memory(measures: Measures) -> None:
    for number in range(3_000):
        measures.publishes(Counter({f"t{number}": 1}))
        measures.take_recent()
    measures.publishes(Counter(t0=1, t2999=1))
    measures.take_recent()
    assert measures.published == 3_002
    assert measures.topics.total() == 3_002
    assert len(measures.topics) == 1_001
    assert (measures.topics["t0"], measures.topics[OTHERS]) == (2, 2_001)


def test_batches_by_stage_and_latency(measures: Measures, clock: Clock) -> None:
    began = measures.now()
    clock.now += 0.5
    measures.took(Stage.READ, began)
    measures.waited(None, records=7)
    measures.waited(2.0, records=3)
    assert measures.stages[Stage.READ].quantiles(0.5, at=clock.now) == [0.5]
    assert measures.stages[Stage.PURGE].count == 0
    assert (measures.latency.count, measures.latency.sum) == (3, 6)
