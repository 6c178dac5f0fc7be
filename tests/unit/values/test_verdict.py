"""Facts of shards make those of the whole, and words that people read."""

from __future__ import annotations

from dataclasses import replace

from unit.values.example_facts import BOUNDS, ERROR, LED, PARKED, ago, shards

from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.verdict import Backlog, Facts, ParkedRefusals, State, in_words


def test_states_and_durations_as_people_read_them() -> None:
    assert State.NO_LEADER.words == "NO LEADER"
    assert [in_words(each) for each in (0.25, 119.9, 120, 7200, 172_800)] == ["0.2 s", "119.9 s", "2 min", "2 h", "2 d"]


def test_the_whole_is_made_of_its_shards() -> None:
    parked = {Cause.UNKNOWN_TOPIC: ParkedRefusals(2, ago(20), "topic y does not exist")}
    whole = shards(
        (0, {"backlog": Backlog(3, oldest_age=5.0), "parked": PARKED, "in_flight": 2}),
        (1, {"backlog": Backlog(4, False, 9.0), "parked": parked, "member": "c:1", "heard_at": ago(3)}),
        (2, {**ERROR, "published_at": ago(0.2), "published": 10}),
    )
    assert whole.backlog == Backlog(7, False, 9.0)
    assert whole.parked == {Cause.UNKNOWN_TOPIC: ParkedRefusals(5, ago(20), "topic y does not exist")}
    assert (whole.member, whole.heard_at, whole.published_at) == ("a:1", ago(3), ago(0.2))
    assert (whole.rate, whole.in_flight, whole.published, whole.last_error) == (4.0, 2, 10, "disk full. Make room")
    assert whole.leads(BOUNDS)
    assert not shards((3, {"heard_at": ago(7)})).leads(BOUNDS)
    assert shards((3, {"heard_at": ago(7)})).rate_now(BOUNDS) == 3
    assert Facts.of([replace(LED, shard=0)]) == LED  # one shard is the outbox
