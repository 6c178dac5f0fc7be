"""The results of a comparison's turns: medians, ratios of each round, and the targets that they meet or miss."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.turns import TurnResult

EXACTLY_ONCE = "exactly once"
AT_LEAST_ONCE = "at least once"
TUNED = "tuned"
BARE_LOOP = "bare loop"
GOHARVEST = "goharvest"
GOHARVEST_BEST = "goharvest, best limits"
DEBEZIUM = "debezium"
DEBEZIUM_TUNED = "debezium, tuned"
DEBEZIUM_WARM = "debezium, tuned and warm"
DEBEZIUM_EXACTLY_ONCE = "debezium, exactly once"
OURS = (EXACTLY_ONCE, AT_LEAST_ONCE)
MOST_MB = 200.0
FIRST_WITHIN = 0.24
"""Seconds from the take-over until the first record of a backlog can be read, by the median of the rounds."""

Side = tuple[str, str]
"""A contender and a shape."""


@dataclass(frozen=True, slots=True)
class Target:
    """How many times as fast one side must be as another, by the median of the rounds' ratios."""

    ours: Side
    other: Side
    least: float

    def __str__(self) -> str:
        return f"{_told(self.ours)}: at least {self.least:g} of {_told(self.other)}"


def _told(side: Side) -> str:
    return f"{side[0]} ({side[1]})"


TARGETS = (
    Target((EXACTLY_ONCE, "keys"), (BARE_LOOP, "keys"), 1.0),
    Target((EXACTLY_ONCE, "keys"), (GOHARVEST, "keys"), 40),
    Target((EXACTLY_ONCE, "keys"), (GOHARVEST_BEST, "keys"), 40),
    Target((EXACTLY_ONCE, "keys"), (DEBEZIUM_TUNED, "keys"), 5),
    Target((EXACTLY_ONCE, "keys"), (DEBEZIUM_WARM, "keys"), 5),
    Target((EXACTLY_ONCE, "keys"), (DEBEZIUM_EXACTLY_ONCE, "keys"), 5),
    Target((EXACTLY_ONCE, "hot"), (EXACTLY_ONCE, "keys"), 0.9),
    Target((EXACTLY_ONCE, "large"), (BARE_LOOP, "large"), 0.8),
    Target((AT_LEAST_ONCE, "keys"), (GOHARVEST, "keys"), 10),
    Target((AT_LEAST_ONCE, "keys"), (GOHARVEST_BEST, "keys"), 10),
)


def summary(results: Sequence[TurnResult]) -> Iterator[dict[str, Any]]:
    """Lines for all that was measured."""
    rates: dict[Side, dict[int, float]] = {}
    peaks: dict[str, float] = {}
    first: list[float] = []
    refused: dict[Side, int] = {}
    for result in results:
        side = (result.contender, result.shape)
        if result.figures is None:
            refused[side] = refused.get(side, 0) + 1
            continue
        rates.setdefault(side, {})[result.round] = result.records / result.figures.seconds
        if side == (EXACTLY_ONCE, "keys"):
            first.append(result.figures.first_seconds)
        peaks[result.contender] = max(peaks.get(result.contender, 0.0), result.figures.peak_mb)
    for (contender, shape), by_round in rates.items():
        spread = _spread(list(by_round.values()), digits=0)
        turns = {"rounds": len(by_round), "refused": refused.get((contender, shape), 0)}
        yield {"summary": "records_per_second", "contender": contender, "shape": shape, **spread, **turns}
    for ours, other in _pairs(rates):
        found = ratios(rates[ours], rates[other])
        if found:
            yield {"summary": "ratio", "contender": ours[0], "over": other[0], "shape": ours[1], **_spread(found)}
    for target in TARGETS:
        found = ratios(rates.get(target.ours, {}), rates.get(target.other, {}))
        ratio = statistics.median(found) if found else None
        yield _verdict(str(target), ratio, met=None if ratio is None else ratio >= target.least)
    soonest = statistics.median(first) if first else None
    text = f"{_told((EXACTLY_ONCE, 'keys'))}: the first record within {FIRST_WITHIN:g} s"
    yield _verdict(text, soonest, met=None if soonest is None else soonest <= FIRST_WITHIN)
    for contender in OURS:
        peak = peaks.get(contender)
        text = f"{contender}: memory under {MOST_MB:g} MB"
        yield _verdict(text, peak, met=None if peak is None else peak < MOST_MB)


def ratios(ours: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """The ratio of each round in which both have a figure."""
    return [ours[number] / other[number] for number in sorted(ours.keys() & other.keys())]


def _pairs(rates: Mapping[Side, object]) -> Iterator[tuple[Side, Side]]:
    for ours in rates:
        if ours[0] in (*OURS, TUNED):
            yield from ((ours, other) for other in rates if other[1] == ours[1] and other[0] != ours[0])


def _spread(found: Sequence[float], digits: int = 3) -> dict[str, float]:
    """The rounds' results, from the lowest to the highest."""
    places = {"median": statistics.median(found), "lowest": min(found), "highest": max(found)}
    return {name: round(value, digits or None) for name, value in places.items()}


def _verdict(target: str, measured: float | None, *, met: bool | None) -> dict[str, Any]:
    """`met` is null where a side has no figure."""
    return {
        "summary": "target",
        "target": target,
        "measured": None if measured is None else round(measured, 3),
        "met": met,
    }
