"""A process' metrics in Airflow's stats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_outbox.triggers.stats import StatsRelay

Sent = list[tuple[str, str, float, dict[str, str]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    found: Sent = []
    stats = SimpleNamespace(
        incr=lambda name, count=1, *, tags: found.append(("incr", name, count, tags)),
        gauge=lambda name, value, *, tags: found.append(("gauge", name, value, tags)),
    )
    monkeypatch.setattr("airflow_outbox.triggers.stats.metrics", lambda: stats)
    return found


def measured(**values: Any) -> dict[str, Any]:
    return {"event": "measured", "metrics": values}


def test_gauges_and_quantiles_are_sent_with_their_labels_as_tags(sent: Sent) -> None:
    batch_time = {"read": {"0.5": 0.1, "0.99": 0.2}}
    StatsRelay("o", print).take(measured(backlog=7, parked={"headers": 2}, batch_time=batch_time, of_a_later_release=1))
    assert sent == [
        ("gauge", "outbox.backlog", 7.0, {"outbox": "o"}),
        ("gauge", "outbox.parked", 2.0, {"outbox": "o", "cause": "headers"}),
        ("gauge", "outbox.batch_time", 0.1, {"outbox": "o", "stage": "read", "quantile": "0.5"}),
        ("gauge", "outbox.batch_time", 0.2, {"outbox": "o", "stage": "read", "quantile": "0.99"}),
    ]


def test_counters_are_sent_as_what_has_come_since_over_several_processes(sent: Sent) -> None:
    relay = StatsRelay("o", print)
    for elections in (0, 1, 1, 3):
        relay.take(measured(elections=elections))
    relay.restarts()
    relay.take(measured(elections=1))
    assert [(name, count) for _, name, count, _ in sent] == [
        ("outbox.elections", 1),
        ("outbox.elections", 2),
        ("outbox.harvest_restarts", 1),
        ("outbox.elections", 1),
    ]
    assert {kind for kind, *_ in sent} == {"incr"}


def test_the_verdict_is_unknown_when_nobody_sees_the_outbox(sent: Sent) -> None:
    relay = StatsRelay("o", print)
    relay.lose_sight()
    assert sent == [], "a verdict that never came is not corrected: of many outboxes there is none"
    relay.take(measured(verdict={"healthy": 1, "unknown": 0}))
    relay.lose_sight()
    last = {tags["state"]: value for _, _, value, tags in sent}
    assert {state for state, value in last.items() if value} == {"unknown"}


def test_published_records_are_counted_by_topic_as_they_come(sent: Sent) -> None:
    relay = StatsRelay("o", print)
    relay.take({"event": "progress", "topics": {"a": 2}})
    relay.take({"event": "progress"})
    relay.take({"event": "elected"})
    assert sent == [("incr", "outbox.published", 2, {"outbox": "o", "topic": "a"})]


def test_a_tag_has_no_character_for_which_airflow_drops_a_metric(sent: Sent) -> None:
    StatsRelay('sales."the outbox"', print).take({"event": "progress", "topics": {"a.b-c_D9": 1}})
    assert sent == [("incr", "outbox.published", 1, {"outbox": "sales._the_outbox_", "topic": "a.b-c_D9"})]


def test_an_error_of_the_stats_is_told_once_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("no such host")

    monkeypatch.setattr("airflow_outbox.triggers.stats.metrics", lambda: SimpleNamespace(incr=fails, gauge=fails))
    complaints: list[str] = []
    relay = StatsRelay("o", complaints.append)
    relay.restarts()
    relay.take(measured(backlog=7))
    assert complaints == ["metrics can't be sent to Airflow's stats: ValueError('no such host')"]
