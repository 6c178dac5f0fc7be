"""How fast a full outbox gets into Kafka, beside the peers: the same rows, on the same servers, in turns.

In every round each contender publishes the same backlog once, from a new database into a new topic of four partitions.
The order of contenders changes from round to round. A turn's time begins when the contender begins to publish: start-up
does not count. It ends when a consumer that reads committed can read the last record, as the broker's last stable
offsets say. Then such a consumer reads everything. A contender that loses, duplicates or reorders a record is
disqualified.

Where all rows have one key, contenders with only one record of a key in flight publish 2,000 of them: all would take
up to half an hour.

Lines of JSON: who is measured and who is not; one a turn; medians and ratios by round; the targets.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import verdicts
from benchmarks.peers.chosen import Absent, add_options, for_a_backlog
from benchmarks.peers.contender import Contender
from benchmarks.peers.rows import SHAPES, Shape
from benchmarks.peers.servers import BenchServers
from benchmarks.peers.surroundings import surroundings
from benchmarks.peers.turns import TurnResult, measured

WARM_UP_ROWS = 20_000
FEWER_ROWS = 2000
PATIENCE = 60.0


def say(text: str) -> None:
    print(f"bench harvest: {text}", file=sys.stderr, flush=True)


def tell(line: dict[str, Any]) -> None:
    print(json.dumps({"benchmark": "harvest", **line}), flush=True)


def rounds(
    bench: BenchServers, chosen: Sequence[Contender], shapes: Sequence[Shape], *, rows: int, number: int
) -> Iterator[TurnResult]:
    """All rounds' results, as they come."""
    for each in range(1, number + 1):
        for shape in shapes:
            first = (each - 1) % len(chosen)
            for contender in [*chosen[first:], *chosen[:first]]:
                fewer = shape.keys == 1 and contender.one_at_a_time
                turn_rows = min(rows, FEWER_ROWS) if fewer else rows
                yield measured(bench, contender, shape, rows=turn_rows, number=each, patience=PATIENCE)


def main() -> None:
    given = arguments().parse_args()
    found = list(for_a_backlog(given))
    chosen = [contender for contender in found if isinstance(contender, Contender)]
    shapes = [SHAPES[name] for name in given.shapes]
    results = []
    with BenchServers.started() as bench:
        tell({"surroundings": surroundings(bench.postgres.dsn()), "rows": given.rows, "rounds": given.rounds})
        for contender in chosen:
            tell({"contender": contender.name, "settings": contender.settings, "timed_from": contender.timed_from})
        for missing in found:
            if isinstance(missing, Absent):
                say(f"not measured: {missing.name} because {missing.reason}")
                tell({"not_measured": missing.name, "because": missing.reason})
        for contender in chosen:
            say(f"warming up: {contender.name}")
            measured(bench, contender, shapes[0], rows=min(given.rows, WARM_UP_ROWS), number=0, patience=PATIENCE)
        for result in rounds(bench, chosen, shapes, rows=given.rows, number=given.rounds):
            results.append(result)
            tell(result.as_line())
            speed = f"{result.figures.records_per_second:,} records/s" if result.figures else result.refused
            say(f"round {result.round}, {result.shape}: {result.contender}: {speed}")
    for line in verdicts.summary(results):
        tell(line)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench harvest", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="how many a turn (default: 200000)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender has its turn (default: 5)")
    parser.add_argument(
        "--shapes",
        type=_shapes,
        default=list(SHAPES),
        help="which rows, separated by commas: keys (10,000 keys), hot (one), large (values of 1 KB); default: all",
    )
    parser.add_argument("--bare", type=Path, metavar="PATH", help="the bare loop's script")
    parser.add_argument("--bare-batch", type=int, default=10_000, help="its records a transaction (default: 10000)")
    parser.add_argument(
        "--tuned", type=Path, metavar="FILE", help="YAML with settings; this project is also measured with these"
    )
    add_options(parser)
    return parser


def _shapes(text: str) -> list[str]:
    chosen = text.split(",")
    for name in chosen:
        if name not in SHAPES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(SHAPES)}")
    return chosen


if __name__ == "__main__":
    main()
