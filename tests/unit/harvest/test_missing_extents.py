"""Batches that go without extents."""

from __future__ import annotations

from typing import Any

from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.missing_extents import MissingExtents


def test_each_is_counted_and_they_are_told_when_that_is_news() -> None:
    told: list[tuple[str | None, int]] = []
    now = 0.0

    def events(event: str, /, **fields: Any) -> None:
        assert (event, fields["cluster"], fields["shard"]) == ("extents", "west", 2)
        told.append((fields["error"], fields["batches"]))

    measures = Measures(lambda: now)
    missing = MissingExtents(events, measures)
    missing.tell("west", 2, None)
    assert told == []
    for _ in range(5):
        missing.tell("west", 2, "no topic")
    assert told == [("no topic", 1)]
    now = 11.0
    missing.tell("west", 2, "no topic")
    missing.tell("west", 2, "not allowed")
    assert told[1:] == [("no topic", 6), ("not allowed", 7)]
    missing.tell("west", 2, None)
    missing.tell("west", 2, None)
    assert told[3:] == [(None, 7)]
    assert measures.without_extents == {"west": 7}
