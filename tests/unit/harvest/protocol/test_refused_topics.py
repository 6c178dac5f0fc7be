"""Topics whose records are refused again and again are held, and no others; and never for good."""

from __future__ import annotations

from airflow_outbox.harvest.protocol.refused_topics import HELD_FOR, MINUTE, MOST_REFUSALS, RefusedTopics
from airflow_outbox.values.refusals import Cause

ROWS = [(1, "sick", "k"), (2, "sound", "k")]


def spent(*, at: float = 0.0) -> RefusedTopics:
    topics = RefusedTopics()
    for _ in range(MOST_REFUSALS):
        topics.refused(["sick"], "simulated", at=at)
    return topics


def test_only_the_refused_topics_are_held() -> None:
    found = spent().untried(ROWS, at=1.0, parked=False)
    assert found.keys() == {1}
    assert found[1].cause is Cause.UNTRIED
    assert "topic sick" in found[1].reason
    assert "simulated" in found[1].reason


def test_fewer_refusals_hold_nothing() -> None:
    topics = RefusedTopics()
    for number in range(3 * MOST_REFUSALS):
        topics.refused(["sick"], "simulated", at=number * MINUTE / (MOST_REFUSALS - 2))
        assert not topics.untried(ROWS, at=number * MINUTE / (MOST_REFUSALS - 2), parked=False)


def test_parked_records_are_tried_as_often_as_the_bound_allows() -> None:
    topics = spent()
    assert topics.untried(ROWS, at=MINUTE - 1, parked=True).keys() == {1}
    assert not topics.untried(ROWS, at=MINUTE + 1, parked=True)
    assert topics.untried(ROWS, at=MINUTE + 1, parked=False).keys() == {1}


def test_a_topic_is_held_until_it_was_not_refused_for_a_while() -> None:
    topics = spent()
    topics.refused(["sick"], "simulated", at=MINUTE + 1)
    assert topics.untried(ROWS, at=HELD_FOR + 1, parked=False).keys() == {1}
    assert not topics.untried(ROWS, at=MINUTE + HELD_FOR + 1, parked=False)


def test_a_topic_that_is_refused_when_the_bound_is_reached_is_held_at_once() -> None:
    topics = spent()
    topics.refused(["sound"], "simulated", at=1.0)
    assert topics.untried(ROWS, at=1.0, parked=False).keys() == {1, 2}
