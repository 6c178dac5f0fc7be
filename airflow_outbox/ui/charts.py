"""The charts' contents, as paths of SVG; a template draws them. Pure: points in, paths and tables out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from airflow_outbox.values.health_history import HistoryPoint
from airflow_outbox.values.verdict import BY_GRAVITY, State

WIDTH: Final = 600.0
HEIGHT: Final = 100.0
SPARK_WIDTH: Final = 120.0
SPARK_HEIGHT: Final = 24.0
_ROUND = (1, 2, 2.5, 5, 10)
_LATE = 45.0
"""Seconds after which even a leader's last note is in a chart."""
_LONG_STEP = 60.0
"""Seconds from which on a step is no longer now."""


@dataclass(frozen=True, slots=True)
class Line:
    """One value over time. `line` and `area` are paths, empty without a point; `top` is the value at the upper edge.

    `newest` is None unless it was noted lately.
    """

    title: str
    unit: str
    line: str
    area: str
    top: float
    newest: float | None
    highest: float | None


@dataclass(frozen=True, slots=True)
class Stripe:
    """From `x` on, for so much `width`, the outbox was in this state."""

    x: float
    width: float
    state: State


@dataclass(frozen=True, slots=True)
class ChartRow:
    """A line of the table beside a chart: the gravest state, the most that waited, the longest wait, the mean rate."""

    begin: datetime
    state: State
    waiting: int | None
    waiting_is_exact: bool
    oldest: float | None
    rate: float
    latency: float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """A stretch of time: its stripes of states, its lines, and the same as a table. `times` stand below, evenly;
    `newest` is when the lines end, in words.
    """

    name: str
    newest: str
    lines: tuple[Line, ...]
    stripes: tuple[Stripe, ...]
    times: tuple[datetime, ...]
    rows: tuple[ChartRow, ...]


def chart(
    name: str, points: Sequence[HistoryPoint], *, now: datetime, seconds: float, step: float, row: float
) -> Chart:
    """Return what to draw of the last `seconds`, of points that stand for `step` seconds each, and a table row for each
    `row` seconds.
    """
    begin = now - timedelta(seconds=seconds)

    def at(point: HistoryPoint) -> float:
        return WIDTH * (point.noted_at - begin).total_seconds() / seconds

    def line(title: str, unit: str, value: Callable[[HistoryPoint], float | None]) -> Line:
        found = [(at(point), value(point)) for point in points]
        recent = WIDTH * (1 - max(_LATE, 1.1 * step) / seconds)
        return _line(title, unit, found, gap=1.5 * WIDTH * step / seconds, recent=recent)

    return Chart(
        name,
        "now" if step < _LONG_STEP else f"last {step / 60:.0f} min",
        lines=(
            line("Published", "records/s", lambda point: point.rate),
            line("Waiting", "records", lambda point: point.backlog.records if point.backlog else None),
            line("Oldest record", "s", lambda point: (point.backlog.oldest_age or 0.0) if point.backlog else None),
            line("Latency, 99 of 100 records", "s", lambda point: point.latency_p99),
        ),
        stripes=tuple(_stripes(points, at, WIDTH * step / seconds)),
        times=tuple(begin + timedelta(seconds=seconds * part / 4) for part in range(5)),
        rows=tuple(_rows(points, row)),
    )


def spark(rates: Iterable[float | None]) -> str:
    """Return the path of a small line without axes; empty where there is nothing to draw."""
    known = list(rates)
    top = max((rate for rate in known if rate is not None), default=0.0) or 1.0
    step = SPARK_WIDTH / max(1, len(known) - 1)
    pairs = [(place * step, rate) for place, rate in enumerate(known)]
    return "".join(_path(run, top, SPARK_HEIGHT) for run in _runs(pairs, gap=1.5 * step))


def round_up(value: float) -> float:
    """Return the next number that people like to see at an axis."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(factor * power for factor in _ROUND if factor * power >= value)


def _line(title: str, unit: str, pairs: Sequence[tuple[float, float | None]], *, gap: float, recent: float) -> Line:
    known = [value for _, value in pairs if value is not None]
    at, newest = pairs[-1] if pairs else (0.0, None)
    highest = max(known, default=None)
    top = round_up(highest or 0.0)
    runs = list(_runs(pairs, gap=gap))
    return Line(
        title,
        unit,
        line="".join(_path(run, top, HEIGHT) for run in runs),
        area="".join(f"{_path(run, top, HEIGHT)}V{HEIGHT:g}H{run[0][0]:.1f}Z" for run in runs),
        top=top,
        newest=newest if at >= recent else None,
        highest=highest,
    )


def _runs(pairs: Iterable[tuple[float, float | None]], *, gap: float) -> Iterator[list[tuple[float, float]]]:
    """Yield stretches without a gap."""
    run: list[tuple[float, float]] = []
    for x, value in pairs:
        if run and (value is None or x - run[-1][0] > gap):
            yield run
            run = []
        if value is not None:
            run.append((x, value))
    if run:
        yield run


def _path(run: Sequence[tuple[float, float]], top: float, height: float) -> str:
    points = [f"{x:.1f} {height - height * min(value, top) / top:.1f}" for x, value in run]
    alone = "h0.1" if len(points) == 1 else ""  # a path of one point draws nothing
    return "M" + "L".join(points) + alone


def _stripes(points: Sequence[HistoryPoint], at: Callable[[HistoryPoint], float], width: float) -> Iterator[Stripe]:
    begin = end = 0.0
    state: State | None = None
    for point in points:
        x = max(0.0, at(point))
        if state is not None and (point.state is not state or x - end > width / 2):
            yield Stripe(begin, end - begin, state)
            state = None
        if state is None:
            begin, state = x, point.state
        end = min(WIDTH, x + width)
    if state is not None:
        yield Stripe(begin, end - begin, state)


def _rows(points: Sequence[HistoryPoint], seconds: float) -> Iterator[ChartRow]:
    """Yield a row for each stretch of this many seconds, the newest first."""
    stretches: dict[float, list[HistoryPoint]] = {}
    for point in points:
        stretches.setdefault(point.noted_at.timestamp() // seconds, []).append(point)
    for some in reversed(list(stretches.values())):
        backlogs = [point.backlog for point in some if point.backlog is not None]
        yield ChartRow(
            begin=some[0].noted_at,
            state=min((point.state for point in some), key=BY_GRAVITY.index),
            waiting=max((each.records for each in backlogs), default=None),
            waiting_is_exact=all(each.is_exact for each in backlogs),
            oldest=max((each.oldest_age for each in backlogs if each.oldest_age is not None), default=None),
            rate=sum(point.rate for point in some) / len(some),
            latency=max((point.latency_p99 for point in some if point.latency_p99 is not None), default=None),
        )
