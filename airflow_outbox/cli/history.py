"""`airflow-outbox status --history`: how the outbox was doing in the last hours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import click

from airflow_outbox.postgres.health_history import STEP
from airflow_outbox.values.health_history import HistoryPoint
from airflow_outbox.values.terminal import as_json
from airflow_outbox.values.verdict import in_words

_MOST_LINES = 60


def step_for(seconds: float, *, output: str) -> float:
    """Return how many seconds a line stands for, so that people get at most 60 lines. Programs get all there is."""
    return STEP if output == "json" else STEP * math.ceil(seconds / STEP / _MOST_LINES)


def show_history(points: Sequence[HistoryPoint], *, step: float, output: str) -> None:
    """Print what was noted, the oldest first."""
    if output == "json":
        click.echo(as_json([asdict(point) for point in points]))
        return
    for line in _lines(points, step):
        click.echo(line)


def _lines(points: Sequence[HistoryPoint], step: float) -> Iterator[str]:
    if not points:
        yield "Nothing was noted: nobody has led in this time, or the harvesters are of an earlier release."
        return
    yield f"{'from (UTC)':19}  {'state':9}  {'waiting':>8}  {'oldest':>8}  {'records/s':>9}  {'p50':>8}  {'p99':>8}"
    before: datetime | None = None
    for point in points:
        gap = (point.noted_at - before).total_seconds() - step if before is not None else 0.0
        if gap > 0:
            yield f"nobody led, or nobody could note it, for {in_words(gap)}"
        yield _line(point)
        before = point.noted_at


def _line(point: HistoryPoint) -> str:
    backlog = point.backlog
    waiting = "?" if backlog is None else f"{'' if backlog.is_exact else '>'}{backlog.records}"
    oldest = _duration(backlog.oldest_age if backlog else None)
    when = f"{point.noted_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    line = (
        f"{when}  {point.state.words:9}  {waiting:>8}  {oldest:>8}  {point.rate:9.0f}  "
        f"{_duration(point.latency_p50):>8}  {_duration(point.latency_p99):>8}"
    )
    return line.rstrip()


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else in_words(seconds)
