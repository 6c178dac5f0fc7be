"""HarvestReport: what is shown of a harvest, and how often."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_outbox.triggers.report import HarvestReport

WHY = [{"cause": "c", "reason": "r", "records": 1}]


def progress(published: int, **fields: Any) -> dict[str, Any]:
    shown = {"standing": "leading", "view": "v", "in_flight": 3, "rate": 10.0, "topics": {}}
    return {"event": "progress", "published": published, **shown, **fields}


def lines(report: HarvestReport, event: dict[str, Any], now: float) -> list[str]:
    return [line.text for line in report.take(event, now)]


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (
            {"event": "started", "outbox": "outbox", "outbox_id": "u", "pid": 7},
            logging.INFO,
            "process 7 harvests outbox (u)",
        ),
        ({"event": "elected", "shard": 0}, logging.INFO, "elected to lead shard 0"),
        ({"event": "view", "shard": 0, "view": "v"}, logging.INFO, "leads shard 0 under view v"),
        ({"event": "stood_by", "reason": "revoked"}, logging.INFO, "stands by: revoked"),
        ({"event": "fenced", "shard": 0, "view": "v"}, logging.WARNING, "fenced: another process has taken over"),
        ({"event": "error", "error": "gone", "retry_in": 0.2}, logging.WARNING, "gone (tries again in 0.2 s)"),
        ({"event": "error", "error": "gone", "retry_in": None}, logging.WARNING, "gone"),
        (
            {"event": "parked", "topics": {"a": 1, "b": 2}, "refused": 2, "waiting": 1, "reasons": WHY},
            logging.WARNING,
            "parked 1 of a, 2 of b: r (1 record, c); 1 records wait behind parked ones",
        ),
        (
            {"event": "parked", "topics": {"a": 5}, "refused": 0, "waiting": 5, "reasons": []},
            logging.INFO,
            "parked 5 of a: 5 records wait behind",
        ),
        (
            {"event": "retried", "topics": {}, "refused": 1, "reasons": [{"cause": "c", "reason": "r", "records": 1}]},
            logging.WARNING,
            "retry failed: r (1 record, c)",
        ),
        (
            {"event": "retried", "topics": {"a": 2, "b": 1}, "refused": 0, "reasons": []},
            logging.INFO,
            "retry succeeded: 2 of a, 1 of b",
        ),
        ({"event": "discarded", "topics": {"a": 2}}, logging.WARNING, "discarded on request: 2 of a"),
        (
            {"event": "throttled", "seconds": 1.25, "client_id": "app"},
            logging.WARNING,
            "a Kafka quota throttles client id app, now for 1.2 s. Raise its producer_byte_rate",
        ),
        ({"event": "ended", "reason": "drained", "published": 4}, logging.INFO, "the harvest has ended: drained"),
        ({"event": "output", "line": "Traceback"}, logging.WARNING, "the harvesting process printed: Traceback"),
        ({"event": "of a later release", "n": 1}, logging.INFO, "event: of a later release, n: 1"),
        ({"event": "elected"}, logging.INFO, "event: elected"),
    ],
)
def test_events_are_logged_at_once(event: dict[str, Any], level: int, text: str) -> None:
    (line,) = HarvestReport().take(event, 0.0)
    assert line.level == level
    assert line.text.startswith(text)


def test_progress_is_logged_every_ten_seconds_while_it_moves_and_every_ten_minutes_while_it_does_not() -> None:
    report = HarvestReport()
    moving = [second for second in range(60) if lines(report, progress(second), second)]
    assert moving == [0, 10, 20, 30, 40, 50]
    idle = [second for second in range(60, 3000) if lines(report, progress(59), second)]
    assert idle == [60, 660, 1260, 1860, 2460]


def test_a_storm_of_events_is_held_back_and_counted() -> None:
    report = HarvestReport()
    error = {"event": "error", "error": "gone", "retry_in": 1}
    logged = [line for tenth in range(6000) for line in lines(report, error, tenth / 10)]
    assert len([line for line in logged if line.startswith("gone")]) == 20 + 60 - 1
    left_out = sum(int(line.split()[0].removeprefix("(")) for line in logged if line.startswith("("))
    assert 6000 - 100 <= left_out + 79 <= 6000


def test_the_xcom_shows_progress_every_ten_seconds_and_only_what_has_changed() -> None:
    report = HarvestReport()
    shown = []
    for second in range(30):
        list(report.take(progress(min(second, 12)), second))
        if (due := report.progress_due(second)) is not None:
            shown.append((second, due["published"]))
    assert shown == [(0, 0), (10, 10), (20, 12)]
    list(report.take(progress(12), 60.0))
    assert report.progress_due(60.0) is None


def test_the_count_goes_on_over_several_processes() -> None:
    report = HarvestReport()
    report.begin_process()
    list(report.take(progress(5, topics={"a": 5}), 0.0))
    report.begin_process()
    list(report.take(progress(2, topics={"a": 1, "b": 1}), 1.0))
    list(report.take({"event": "ended", "reason": "drained", "published": 3}, 2.0))
    assert report.published == 8
    assert report.news_due(3.0) == {"topics": {"a": 6, "b": 1}}
    assert report.topics == {"a": 6, "b": 1}


def test_publications_are_given_out_once_a_second_at_most_and_none_is_left_out() -> None:
    report = HarvestReport()
    given = []
    for tenth in range(25):
        list(report.take(progress(tenth, topics={"a": 1}), tenth / 10))
        if news := report.news_due(tenth / 10):
            given.append((tenth, news["topics"]))
    assert given == [(0, {"a": 1}), (10, {"a": 10}), (20, {"a": 10})]
    assert report.news_due(2.5) == {}
    assert report.news_due(2.5, final=True) == {"topics": {"a": 4}}
    assert report.news_due(9.0, final=True) == {}


def test_parking_is_news_of_an_asset_and_what_happens_within_a_second_is_added_up() -> None:
    report = HarvestReport()

    def parked(*, refused: int, waiting: int) -> dict[str, Any]:
        reasons = [{"cause": "c", "reason": "r", "records": refused}] if refused else []
        topics = {"a": refused, "b": waiting}
        return {"event": "parked", "topics": topics, "refused": refused, "waiting": waiting, "reasons": reasons}

    list(report.take(parked(refused=0, waiting=5), 0.0))
    assert report.news_due(0.0) == {}
    for event in (
        parked(refused=2, waiting=1),
        parked(refused=0, waiting=3),
        {"event": "retried", "topics": {"a": 2}, "refused": 0, "reasons": []},
        {"event": "retried", "topics": {"a": 1, "b": 1}, "refused": 1, "reasons": WHY},
        {"event": "discarded", "topics": {"a": 1}},
    ):
        list(report.take(event, 0.5))
    assert report.news_due(0.5) == {
        "topics": {},
        "parked": {
            "topics": {"a": 2, "b": 9},
            "refused": 2,
            "waiting": 9,
            "reasons": [{"cause": "c", "reason": "r", "records": 2}],
        },
        "retried": {"topics": {"a": 3, "b": 1}, "refused": 1, "reasons": WHY},
        "discarded": {"topics": {"a": 1}},
    }
    assert report.news_due(9.0) == {}


@pytest.mark.parametrize(
    ("events", "status", "reason"),
    [
        ([{"event": "error", "error": "no outbox. Run init", "retry_in": None}], 1, "no outbox. Run init"),
        ([], -9, "the harvesting process was killed by signal 9"),
        (
            [{"event": "output", "line": "Killed"}],
            137,
            "the harvesting process ended with status 137; its last output:\nKilled",
        ),
    ],
)
def test_why_a_process_ended(events: list[dict[str, Any]], status: int, reason: str) -> None:
    report = HarvestReport()
    for event in events:
        list(report.take(event, 0.0))
    assert report.why_it_ended(status) == reason
