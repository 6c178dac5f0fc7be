"""What the status says of a shard: only what is true now."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from unit.values.example_facts import BOUNDS, ERROR, LED, NOW, ago

from airflow_outbox.operate.status import ShardStatus, judged
from airflow_outbox.values.verdict import State

TOLD = ShardStatus(
    shard=0,
    member="a:1",
    view=UUID(int=1),
    took_over_at=ago(3600),
    silent_for=0.5,
    published=9,
    in_flight=70,
    rate=5000.0,
    paused=False,
    last_error=ERROR["last_error"],
    last_error_at=ERROR["last_error_at"],
)


def test_a_leaders_rate_and_error_are_shown_while_it_leads() -> None:
    [shard] = judged([TOLD], replace(LED, rate=5000.0, **ERROR), BOUNDS)
    assert (shard.rate, shard.in_flight) == (5000.0, 70)
    assert (shard.last_error, shard.last_error_at) == ("a:1: disk full. Make room", ago(0.5))


def test_nothing_is_left_of_a_leader_that_was_killed_but_what_it_published() -> None:
    [shard] = judged([TOLD], replace(LED, rate=5000.0, heard_at=ago(60), **ERROR), BOUNDS)
    assert shard.verdict is not None
    assert shard.verdict.state is State.NO_LEADER
    assert (shard.rate, shard.in_flight, shard.last_error, shard.last_error_at) == (0.0, 0, None, None)
    assert shard.published == 9


def test_an_error_is_over_when_something_was_published_since() -> None:
    [shard] = judged([TOLD], replace(LED, published_at=NOW, **ERROR), BOUNDS)
    assert shard.last_error is None
