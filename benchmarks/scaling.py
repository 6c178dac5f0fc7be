"""Do a large backlog, a bloated table and many topics slow harvesting down, and how much memory does it take?

- *backlog*: a backlog of ten million rows beside one of 100,000, which comes several times, before and after;
- *bloat*: a backlog of 100,000 rows in a table that a large backlog has gone through. No vacuum may remove its dead
  rows, since another session holds a snapshot. Beside it, the same in the same table vacuumed;
- *topics*: rows for 1,000 topics beside rows for one.

Everything is published exactly once, by a new process each time, and counted by a consumer that reads committed. Lines
of JSON: what is measured; one a turn; for each of the three a ratio, and whether it is at least 0.9. Start-up
slows a short backlog, but not a long one: so rates are also compared from when the first batch could be read, and the
lower ratio counts. The last line is the memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_outbox.harvest.config import Limits
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.servers import BenchServers
from benchmarks.peers.surroundings import surroundings
from benchmarks.peers.turns import TurnResult, measured
from benchmarks.peers.verdicts import MOST_MB
from benchmarks.scaled.bloated import Backlogged, Used
from benchmarks.scaled.many_topics import Spread, spread

LEAST = 0.9
LONG_ROWS = 10_000_000
SHORT_ROWS = 1_000_000
FEW_ROWS = 100_000
BLOATING_ROWS = 1_000_000
TOPICS = 1000
PARTS = ("backlog", "bloat", "topics")
PATIENCE = 60.0

Line = dict[str, Any]


def backlog(bench: BenchServers, *, few: int, many: int, rounds: int) -> Iterator[Line]:
    """Turns, the short ones before and after the long one, and the comparison."""
    numbers = range(1, rounds + 1)
    before = -(-rounds // 2)
    order = [few] * before + [many] + [few] * (rounds - before)
    results: dict[int, list[TurnResult]] = {few: [], many: []}
    for number, rows in zip([*numbers[:before], 1, *numbers[before:]], order, strict=True):
        contender = Backlogged(f"{rows} rows")
        result = measured(bench, contender, SHAPES["keys"], rows=rows, number=number, patience=PATIENCE)
        results[rows].append(result)
        yield {"measured": "backlog", **result.as_line()}
    yield compared(f"backlog: {many} rows beside {few}", results[many], results[few])


def bloat(bench: BenchServers, *, before: int, rows: int, rounds: int) -> Iterator[Line]:
    """Turns over the bloated table and over the vacuumed one, alternating, and the comparison."""
    contenders = [Used("vacuumed", before=before, held=False), Used("bloated", before=before, held=True)]
    results: dict[str, list[TurnResult]] = {contender.name: [] for contender in contenders}
    for number in range(1, rounds + 1):
        for contender in contenders if number % 2 else reversed(contenders):
            result = measured(bench, contender, SHAPES["keys"], rows=rows, number=number, patience=PATIENCE)
            results[contender.name].append(result)
            yield {"measured": "bloat", **result.as_line(), "dead_rows": contender.dead_rows}
    yield compared(f"bloat: {before} dead rows beside none", results["bloated"], results["vacuumed"])


def topics(bench: BenchServers, *, number: int, rows: int, rounds: int) -> Iterator[Line]:
    """Turns over one topic and over many, alternating, and the comparison. A turn over many, which does not count,
    comes first: a broker that has not served many partitions yet needs twice the time for them.
    """
    spread(bench, topics=number, rows=rows, number=0)
    results: dict[int, list[Spread]] = {1: [], number: []}
    for each in range(1, rounds + 1):
        for chosen in (1, number) if each % 2 else (number, 1):
            result = spread(bench, topics=chosen, rows=rows, number=each)
            results[chosen].append(result)
            yield {"measured": "topics", **result.as_line()}
    many, one = (_median(result.rate for result in results[chosen]) for chosen in (number, 1))
    yield _verdict(f"topics: {number} beside one", {"ratio": _ratio(many, one)})


def compared(name: str, ours: Sequence[TurnResult], beside: Sequence[TurnResult]) -> Line:
    """The ratios of the medians' rates, overall and without the first batch, and the verdict on the lower one."""
    sides = [
        (_median(_rate(result) for result in side), _median(_rate_behind_first(result) for result in side))
        for side in (ours, beside)
    ]
    (whole, behind), (whole_beside, behind_beside) = sides
    ratios = {"ratio": _ratio(whole, whole_beside), "ratio_behind_first_batch": _ratio(behind, behind_beside)}
    return _verdict(name, ratios)


def _verdict(name: str, ratios: dict[str, float | None]) -> Line:
    """`met` is null where a side has no figure."""
    found = [ratio for ratio in ratios.values() if ratio is not None]
    met = min(found) >= LEAST if len(found) == len(ratios) else None
    return {"summary": "target", "target": f"{name}: at least {LEAST:g}", **ratios, "met": met}


def _rate(result: TurnResult) -> float | None:
    return None if result.figures is None else result.records / result.figures.seconds


def _rate_behind_first(result: TurnResult) -> float | None:
    """Records a second from when consumers could read the first batch."""
    rows = result.records - Limits().batch_records
    if result.figures is None or rows <= 0 or result.figures.seconds <= result.figures.first_seconds:
        return None
    return rows / (result.figures.seconds - result.figures.first_seconds)


def _median(rates: Iterator[float | None]) -> float | None:
    found = [rate for rate in rates if rate is not None]
    return statistics.median(found) if found else None


def _ratio(ours: float | None, beside: float | None) -> float | None:
    return None if ours is None or beside is None else round(ours / beside, 3)


def memory(lines: Sequence[Line]) -> Line:
    """The peak memory of a harvester in any turn."""
    peaks = [line["peak_mb"] for line in lines if line.get("peak_mb") is not None]
    peak = max(peaks, default=None)
    met = None if peak is None else peak < MOST_MB
    return {"summary": "target", "target": f"memory under {MOST_MB:g} MB", "peak_mb": peak, "met": met}


def main() -> None:
    given = arguments().parse_args()
    rows = given.rows or (SHORT_ROWS if given.short else LONG_ROWS)
    rounds = given.rounds or (3 if given.short else 5)
    bloating = min(rows, BLOATING_ROWS // 2 if given.short else BLOATING_ROWS)
    few = min(FEW_ROWS, rows)
    lines: list[Line] = []
    with BenchServers.started() as bench:
        tell({"surroundings": surroundings(bench.postgres.dsn()), "rows": rows, "rounds": rounds})
        say("warming up")
        measured(bench, Backlogged("warm-up"), SHAPES["keys"], rows=few, number=0, patience=PATIENCE)
        parts = {
            "backlog": backlog(bench, few=few, many=rows, rounds=rounds),
            "bloat": bloat(bench, before=bloating, rows=few, rounds=rounds),
            "topics": topics(bench, number=TOPICS, rows=few, rounds=rounds),
        }
        for part in given.parts:
            for line in parts[part]:
                lines.append(line)
                tell(line)
                say(_in_words(line))
    tell(memory(lines))
    say(_in_words(memory(lines)))


def tell(line: Line) -> None:
    print(json.dumps({"benchmark": "scaling", **line}), flush=True)


def say(text: str) -> None:
    print(f"bench scaling: {text}", file=sys.stderr, flush=True)


def _in_words(line: Line) -> str:
    if "summary" in line:
        found = ", ".join(str(line[name]) for name in ("ratio", "ratio_behind_first_batch", "peak_mb") if name in line)
        return f"{line['target']}: {found} ({ {True: 'met', False: 'missed', None: 'no figure'}[line['met']] })"
    name = line.get("contender") or f"topics: {line['topics']}"
    speed = line.get("refused") or f"{line['records_per_second']:,} records/s, {line['peak_mb']} MB"
    return f"{line['measured']}, round {line['round']}: {name}: {speed}"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench scaling", description=__doc__)
    parser.add_argument("--rows", type=int, help=f"of the large backlog (default: {LONG_ROWS}; short: {SHORT_ROWS})")
    parser.add_argument("--short", action="store_true", help="fewer rows, fewer rounds")
    parser.add_argument("--rounds", type=int, help="how often each of the short turns comes (default: 5; short: 3)")
    parser.add_argument(
        "--parts", type=_parts, default=list(PARTS), help=f"which, separated by commas (default: {','.join(PARTS)})"
    )
    return parser


def _parts(text: str) -> list[str]:
    chosen = text.split(",")
    for name in chosen:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(PARTS)}")
    return chosen


if __name__ == "__main__":
    main()
