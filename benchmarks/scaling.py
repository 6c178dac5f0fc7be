"""What do a large backlog, a bloated table, many topics and shards do to the speed, and how much memory does it take?

- *backlog*: a backlog of ten million rows beside one of 100,000, which comes several times, before and after;
- *bloat*: a backlog of 100,000 rows in a table that a large backlog has gone through. No vacuum may remove its dead
  rows, since another session holds a snapshot. Beside it, the same in the same table vacuumed;
- *topics*: rows for 1,000 topics beside rows for one;
- *shards*: several shards beside one. First the servers are behind a round trip of 20 ms, and a batch has at most 200
  records, so that leaders mostly wait. Then the servers are near, and each shard has a process.

Everything is published exactly once, by new processes each time, and counted by a consumer that reads committed. Lines
of JSON: what is measured; one a turn; ratios, and whether they reach their targets. Start-up slows a short backlog, but
not a long one: so rates are also compared from when the first batch could be read, and the lower ratio counts. The last
line is the memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from airflow_outbox.harvest.config import Limits
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.servers import BenchServers
from benchmarks.peers.surroundings import surroundings
from benchmarks.peers.turns import TurnResult, measured
from benchmarks.peers.verdicts import MOST_MB
from benchmarks.scaled.bloated import Backlogged, Used
from benchmarks.scaled.many_topics import Spread, spread
from benchmarks.scaled.sharded import Distance, Members, ShardedTurn, servers_far_away, sharded

LEAST = 0.9
LONG_ROWS = 10_000_000
SHORT_ROWS = 1_000_000
FEW_ROWS = 100_000
BLOATING_ROWS = 1_000_000
TOPICS = 1000
ROUND_TRIP = 0.02
FAR_BATCH_RECORDS = 200
FAR_TRANSACTIONAL_IDS = 2
"""For each shard. One shard has two by default, and each of several has one."""
FAR_TARGETS = {4: 3.5, 16: 12.0}
"""How many times as fast as one so many shards have to be."""
FAR_ROWS_A_SHARD = 30_000
NEAR_SHARDS = 2
NEAR_ROWS = 600_000
PARTS = ("backlog", "bloat", "topics", "shards")
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


def shards(
    bench: BenchServers, distance: Distance | None, *, targets: Mapping[int, float], rows: int, rounds: int
) -> Iterator[Line]:
    """Turns of one shard, and of as many as there are targets for, in one process, and the comparisons.

    Each shard has so many `rows`. A turn of the most shards, which does not count, comes first: a broker needs many
    transactions to reach its speed.
    """
    settings = {"batch_records": FAR_BATCH_RECORDS, "transactional_ids": FAR_TRANSACTIONAL_IDS}
    everyone = [Members(number, **settings) for number in (1, *targets)]
    sharded(bench, everyone[-1], rows=rows * everyone[-1].shards, number=0, distance=distance)
    results = yield from _sharded(bench, everyone, rows, rounds, distance)
    for members in everyone[1:]:
        least = targets[members.shards]
        ratio = {"ratio": _ratio(*(_median_rate(results[each]) for each in (members, everyone[0])))}
        yield _verdict(f"shards: {members}, far from the servers, beside one", ratio, least=least)


def processes(bench: BenchServers, *, shards: int, rows: int, rounds: int) -> Iterator[Line]:
    """Turns of one shard, and of several with a process each, near the servers, and the comparison."""
    one, several = everyone = [Members(1), Members(shards, processes=shards)]
    results = yield from _sharded(bench, everyone, rows, rounds, None)
    ratio = _ratio(_median_rate(results[several]), _median_rate(results[one]))
    yield {"summary": "ratio", "ratio_of": f"shards: {several} beside one", "ratio": ratio}


def _sharded(
    bench: BenchServers, everyone: Sequence[Members], rows: int, rounds: int, distance: Distance | None
) -> Generator[Line, None, dict[Members, list[ShardedTurn]]]:
    results: dict[Members, list[ShardedTurn]] = {members: [] for members in everyone}
    away = {} if distance is None else {"round_trip_ms": round(1000 * distance.round_trip, 1)}
    for number in range(1, rounds + 1):
        for members in everyone if number % 2 else reversed(everyone):
            result = sharded(bench, members, rows=rows * members.shards, number=number, distance=distance)
            results[members].append(result)
            yield {"measured": "shards", **away, **result.as_line()}
    return results


def _median_rate(results: Sequence[ShardedTurn]) -> float | None:
    return _median(result.records_per_second for result in results)


def compared(name: str, ours: Sequence[TurnResult], beside: Sequence[TurnResult]) -> Line:
    """The ratios of the medians' rates, overall and without the first batch, and the verdict on the lower one."""
    sides = [
        (_median(_rate(result) for result in side), _median(_rate_behind_first(result) for result in side))
        for side in (ours, beside)
    ]
    (whole, behind), (whole_beside, behind_beside) = sides
    ratios = {"ratio": _ratio(whole, whole_beside), "ratio_behind_first_batch": _ratio(behind, behind_beside)}
    return _verdict(name, ratios)


def _verdict(name: str, ratios: dict[str, float | None], *, least: float = LEAST) -> Line:
    """`met` is null where a side has no figure."""
    found = [ratio for ratio in ratios.values() if ratio is not None]
    met = min(found) >= least if len(found) == len(ratios) else None
    return {"summary": "target", "target": f"{name}: at least {least:g}", **ratios, "met": met}


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
    with servers_far_away(ROUND_TRIP) as (bench, distance):
        tell({"surroundings": surroundings(bench.postgres.dsn()), "rows": rows, "rounds": rounds})
        say("warming up")
        measured(bench, Backlogged("warm-up"), SHAPES["keys"], rows=few, number=0, patience=PATIENCE)
        parts = {
            "backlog": backlog(bench, few=few, many=rows, rounds=rounds),
            "bloat": bloat(bench, before=bloating, rows=few, rounds=rounds),
            "topics": topics(bench, number=TOPICS, rows=few, rounds=rounds),
            "shards": chain(
                shards(bench, distance, targets=FAR_TARGETS, rows=FAR_ROWS_A_SHARD, rounds=rounds),
                processes(bench, shards=NEAR_SHARDS, rows=NEAR_ROWS, rounds=rounds),
            ),
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
    if "ratio_of" in line:
        return f"{line['ratio_of']}: {line['ratio']}"
    if "summary" in line:
        found = ", ".join(str(line[name]) for name in ("ratio", "ratio_behind_first_batch", "peak_mb") if name in line)
        return f"{line['target']}: {found} ({ {True: 'met', False: 'missed', None: 'no figure'}[line['met']] })"
    name = line.get("contender") or (
        f"topics: {line['topics']}" if "topics" in line else f"{line['shards']} over {line['processes']}"
    )
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
