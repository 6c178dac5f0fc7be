"""Charts: points in, paths and tables out."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from airflow_outbox.ui.charts import Chart, chart, round_up, spark
from airflow_outbox.values.health_history import HistoryPoint
from airflow_outbox.values.verdict import Backlog, State

NOW = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def point(
    ago: float,
    *,
    state: State = State.HEALTHY,
    rate: float = 1.0,
    waiting: int | None = 0,
    latency: float | None = 0.1,
) -> HistoryPoint:
    backlog = None if waiting is None else Backlog(waiting, True, 2.0)
    return HistoryPoint(NOW - timedelta(seconds=ago), state, backlog, rate, 0.01, latency)


def drawn(*points: HistoryPoint) -> Chart:
    return chart("Last hour", points, now=NOW, seconds=3600, step=10, row=300)


def test_a_line_goes_from_the_left_to_the_right_and_up_with_the_value() -> None:
    line = drawn(point(3600, rate=0), point(3590, rate=5), point(3580, rate=10)).lines[0]
    assert line.line == "M0.0 100.0L1.7 50.0L3.3 0.0"
    assert (line.top, line.highest) == (10, 10)
    assert line.area == "M0.0 100.0L1.7 50.0L3.3 0.0V100H0.0Z"


def test_only_a_late_value_is_called_the_newest() -> None:
    found = [drawn(point(60), point(ago, rate=7)).lines[0].newest for ago in (15, 50)]
    assert found == [7, None]
    *_, latency = drawn(point(30), point(20, latency=None)).lines
    assert latency.newest is None
    day = chart("Last day", [point(299)], now=NOW, seconds=86400, step=300, row=3600)
    assert (day.newest, day.lines[0].newest) == ("last 5 min", day.lines[0].highest)


def test_a_time_without_a_leader_is_a_gap() -> None:
    found = drawn(point(600), point(590), point(300), point(290))
    assert found.lines[0].line.count("M") == 2
    assert [round(stripe.x) for stripe in found.stripes] == [500, 550]


def test_a_value_that_nobody_knows_is_a_gap() -> None:
    waiting = drawn(point(30, waiting=3), point(20, waiting=None), point(10, waiting=4)).lines[1]
    assert waiting.line.count("M") == 2
    assert waiting.line.endswith("h0.1")  # a lone point is seen, too


def test_states_are_stripes_and_equal_neighbours_one() -> None:
    states = [State.HEALTHY, State.HEALTHY, State.STALLED, State.HEALTHY]
    found = drawn(*(point(40 - 10 * place, state=state) for place, state in enumerate(states)))
    assert [stripe.state for stripe in found.stripes] == [State.HEALTHY, State.STALLED, State.HEALTHY]
    assert all(stripe.width > 0 for stripe in found.stripes)


def test_the_table_says_the_worst_of_each_row_and_begins_with_the_newest() -> None:
    found = drawn(point(400, rate=2, waiting=7), point(20, state=State.HALTED, waiting=9), point(10, rate=3, waiting=1))
    newest, before = found.rows
    assert (newest.state, newest.waiting, newest.rate) == (State.HALTED, 9, 2)
    assert (before.waiting, before.oldest, before.latency) == (7, 2.0, 0.1)


def test_nothing_was_noted() -> None:
    found = drawn()
    assert found.lines[0].line == found.lines[0].area == ""
    assert found.lines[0].newest is None
    assert (found.rows, found.stripes) == ((), ())


def test_paths_have_numbers_only() -> None:
    found = drawn(*(point(10 * place, rate=place**3, waiting=place) for place in range(360, 0, -1)))
    for line in found.lines:
        assert re.fullmatch(r"[MLVHZh0-9. ]*", line.line + line.area)
        assert "nan" not in line.line


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.03, 0.05), (1, 1), (1.2, 2), (2.2, 2.5), (30, 50), (999, 1000), (1e9, 1e9)]
)
def test_an_axis_ends_at_a_number_that_people_like(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top)


def test_a_spark_has_gaps_and_may_be_empty() -> None:
    assert spark([None] * 60) == ""
    assert spark([1.0, None, 2.0, 2.0]).count("M") == 2
    assert spark([]) == ""
