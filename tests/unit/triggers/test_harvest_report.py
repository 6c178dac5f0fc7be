"""HarvestReport: what is shown of a harvest, and how often."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_outbox.triggers.harvest_report import HarvestReport

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
        (
            {"event": "took_over", "shard": 0, "view": "v", "seconds": 0.84},
            logging.INFO,
            "harvests shard 0, after a take-over of 0.8 s",
        ),
        (
            {"event": "verdict", "state": "healthy", "cause": "a:1 leads", "since": None, "remedy": "", "notes": []},
            logging.INFO,
            "HEALTHY: a:1 leads",
        ),
        (
            {
                "event": "verdict",
                "state": "no_leader",
                "cause": "nobody leads",
                "since": "12:00",
                "remedy": "Go",
            },
            logging.WARNING,
            "NO LEADER since 12:00: nobody leads. To do: Go",
        ),
        (
            {"event": "verdict", "state": "of a later release", "cause": "c"},
            logging.INFO,
            "event: verdict, state: of a later release, cause: c",
        ),
        ({"event": "stood_by", "shard": 0, "reason": "revoked"}, logging.INFO, "stands by for shard 0: revoked"),
        ({"event": "fenced", "shard": 0, "view": "v"}, logging.WARNING, "fenced: another process has taken over"),
        ({"event": "error", "error": "gone", "retry_in": 0.2}, logging.WARNING, "gone (tries again in 0.2 s)"),
        ({"event": "error", "error": "gone", "retry_in": None}, logging.WARNING, "gone"),
        ({"event": "error", "error": "gone", "retry_in": None, "shard": 2}, logging.WARNING, "shard 2: gone"),
        (
            {"event": "discarded", "topics": {"a": 1}, "shard": 3},
            logging.WARNING,
            "shard 3: discarded on request: 1 of a",
        ),
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
        (
            {"event": "extents", "cluster": "west", "shard": 0, "error": "no such topic", "batches": 3},
            logging.WARNING,
            "batches of shard 0 go without extents on cluster west, 3 up to now: no such topic",
        ),
        (
            {"event": "extents", "cluster": "west", "shard": 0, "error": None, "batches": 3},
            logging.INFO,
            "batches of shard 0 have extents on cluster west again",
        ),
        ({"event": "positions_started", "pid": 4}, logging.INFO, "process 4 replicates consumer groups' positions"),
        (
            {"event": "positions", "groups": 7, "two_homes": ["app"], "away": {"west": "down"}},
            logging.WARNING,
            "positions of 7 consumer groups are replicated, but these are left alone, with two homes: app; cluster",
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


def test_positions_are_logged_when_they_change() -> None:
    report = HarvestReport()
    quiet = {"event": "positions", "groups": 7, "two_homes": [], "away": {}}
    assert len([*report.take(quiet, 0.0)]) == 1
    assert [*report.take({**quiet, "groups": 8}, 10.0)] == []
    assert len([*report.take({**quiet, "two_homes": ["app"]}, 20.0)]) == 1


def test_progress_is_logged_every_ten_seconds_while_it_moves_and_every_ten_minutes_while_it_does_not() -> None:
    report = HarvestReport()
    moving = [second for second in range(60) if lines(report, progress(second), second)]
    assert moving == [0, 10, 20, 30, 40, 50]
    idle = [second for second in range(60, 3000) if lines(report, progress(59), second)]
    assert idle == [60, 660, 1260, 1860, 2460]


def test_a_storm_of_events_is_held_back_and_counted() -> None:
    report = HarvestReport()

    def error(number: int) -> dict[str, Any]:
        return {"event": "error", "error": f"gone {number}", "retry_in": 1}

    logged = [line for tenth in range(6000) for line in lines(report, error(tenth), tenth / 10)]
    assert len([line for line in logged if line.startswith("gone")]) == 20 + 60 - 1
    left_out = sum(int(line.split()[0].removeprefix("(")) for line in logged if line.startswith("("))
    assert 6000 - 100 <= left_out + 79 <= 6000
    verdict = {"event": "verdict", "state": "stalled", "cause": "gone", "remedy": "Go"}
    assert lines(report, verdict, 600.0) == ["STALLED: gone. To do: Go"], "no storm holds a verdict back"
    assert lines(report, verdict, 700.0) == [], "it is no news"


def test_an_error_is_told_once_until_it_is_over() -> None:
    report = HarvestReport()

    def errors(error: str, now: float, retry_in: float | None = None) -> list[str]:
        return lines(report, {"event": "error", "error": error, "retry_in": retry_in}, now)

    def verdict(state: str, now: float) -> None:
        list(report.take({"event": "verdict", "state": state, "cause": "c"}, now))

    assert errors("no Kafka", 0.0, 0.1) == ["no Kafka (tries again in 0.1 s)"]
    assert errors("no Kafka", 1.0, 0.2) == []
    assert errors("no login", 2.0) == ["no login"]
    verdict("stalled", 3.0)
    assert errors("no Kafka", 599.0) == []
    assert errors("no Kafka", 600.0) == ["no Kafka"], "it lasts"
    assert errors("no Kafka", 601.0) == []
    verdict("healthy", 601.0)
    assert errors("no Kafka", 602.0) == ["no Kafka"], "it is back"
    assert report.last_error == "no Kafka"


def test_many_different_errors_take_a_bounded_memory() -> None:
    report = HarvestReport()
    for number in range(1000):
        list(report.take({"event": "error", "error": f"e{number}", "retry_in": None}, 0.0))
    assert len(report._errors._known) == 100


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


def test_the_xcom_shows_another_verdict_at_once() -> None:
    report = HarvestReport()
    shown = []
    for second in range(12):
        event = measured(waits=0, age=0.0)
        if second in (3, 4, 5):
            event["verdict"] = {"state": "stalled", "cause": f"for {second} s"}
        list(report.take(event, second))
        list(report.take(progress(second), second))
        if (due := report.progress_due(second)) is not None:
            shown.append((second, due["verdict"]["state"]))
    assert shown == [(0, "healthy"), (3, "stalled"), (6, "healthy")]


def measured(*, waits: int, age: float, **metrics: Any) -> dict[str, Any]:
    metrics = {"backlog": waits, "backlog_is_exact": 1, "oldest_age": age, "leader_silence": 0.3, **metrics}
    return {"event": "measured", "metrics": metrics, "verdict": {"state": "healthy", "cause": "a:1 leads"}}


def test_progress_has_the_verdict_and_what_waits() -> None:
    report = HarvestReport()
    assert lines(report, measured(waits=7, age=3.25, parked={"headers": 0, "spread": 2}), 0.0) == []
    [line] = lines(report, progress(5), 0.0)
    assert line == "5 records published, 10/s now, 3 in flight; leading; 7 wait, the oldest for 3.2 s"
    assert report.progress is not None
    assert (
        report.progress.items()
        >= {
            "verdict": {"state": "healthy", "cause": "a:1 leads"},
            "backlog": 7,
            "backlog_is_exact": 1,
            "oldest_age": 3.25,
            "parked": {"spread": 2},
            "publish_latency": None,
        }.items()
    )
    list(report.take(measured(waits=100_000, age=60.0, backlog_is_exact=0), 10.0))
    [line] = lines(report, progress(6), 10.0)
    assert line.endswith("; more than 100000 wait, the oldest for 60.0 s")


def test_an_idle_outbox_sets_no_xcom_again_and_again() -> None:
    report = HarvestReport()
    shown = 0
    for second in range(0, 60, 5):
        list(report.take(measured(waits=0, age=0.0, leader_silence=second / 100), second))
        list(report.take(progress(5), second))
        shown += report.progress_due(second) is not None
    assert shown == 1


def test_without_a_process_nobody_knows_how_the_outbox_is_doing() -> None:
    report = HarvestReport()
    list(report.take(measured(waits=7, age=3.2), 0.0))
    list(report.take(progress(5), 0.0))
    event = report.lose_sight("the process was killed. Restart it")
    told = {"state": "unknown", "cause": "the process was killed", "since": None, "remedy": "Restart it"}
    assert event == {"event": "verdict", **told, "notes": []}
    assert report.progress == {"published": 5, "verdict": told}
    assert not report.sees
    list(report.take(progress(6), 1.0))
    assert report.sees
    assert "verdict" not in report.progress, "the next one that is measured says it"


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
