"""Where the time goes while a backlog is published exactly once: each stage's wall time and processor time.

The harvester runs in a process of its own, as a user runs it, with timers put around its methods from outside: the
package has none. The same backlog is also published without timers, to show their cost. Stages of different threads
overlap, so their wall times don't add up to the whole. Wall time without processor time was spent waiting: for a
server, a disk, or the other threads of the interpreter.

Lines of JSON: what is measured; one a stage, with the thread it runs in; other users of processor time; the timers'
cost. A table of the same comes at the end, on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.peers.outbox import AirflowOutbox
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.servers import BenchServers
from benchmarks.peers.surroundings import surroundings
from benchmarks.peers.turns import TurnResult, measured
from benchmarks.peers.usage import Usage
from benchmarks.profiling.child import Profile
from benchmarks.profiling.profiled import Profiled
from benchmarks.profiling.stages import STAGES

WARM_UP_ROWS = 20_000
PATIENCE = 60.0


def say(text: str) -> None:
    print(f"bench profile: {text}", file=sys.stderr, flush=True)


def tell(line: dict[str, Any]) -> None:
    print(json.dumps({"benchmark": "profile", **line}), flush=True)


def main() -> None:
    given = arguments().parse_args()
    shape = SHAPES[given.shape]
    with BenchServers.started() as bench:
        tell({"surroundings": surroundings(bench.postgres.dsn()), "rows": given.rows, "shape": shape.name})
        say("warming up")
        measured(
            bench, AirflowOutbox("warm-up"), shape, rows=min(given.rows, WARM_UP_ROWS), number=0, patience=PATIENCE
        )
        say("without timers")
        plain = measured(bench, AirflowOutbox("without timers"), shape, rows=given.rows, number=1, patience=PATIENCE)
        say("with timers")
        lines, profiled = profile(bench, shape_name=shape.name, rows=given.rows)
    for line in lines:
        tell(line)
    for result in (plain, profiled):
        tell({"profile": "turn", **result.as_line()})
    for text in table(lines):
        print(text, file=sys.stderr)
    if plain.figures and profiled.figures:
        share = profiled.figures.records_per_second / plain.figures.records_per_second
        say(f"with timers {share:.2f} of the speed without them ({plain.figures.records_per_second:,} records/s)")
    for result in (plain, profiled):
        if result.refused:
            sys.exit(f"bench profile: {result.contender}: {result.refused}")


def profile(bench: BenchServers, *, shape_name: str, rows: int) -> tuple[list[dict[str, Any]], TurnResult]:
    """Publish a backlog with timers; return the lines, none where the turn got no figure, and the turn."""
    contender = Profiled("with timers", rows=rows)
    with Usage() as usage:
        usage.watch("Postgres", bench.postgres.pid, with_family=True)
        usage.watch("Kafka", bench.kafka.pid)
        usage.watch("bench", os.getpid(), with_family=True)
        result = measured(bench, contender, SHAPES[shape_name], rows=rows, number=1, patience=PATIENCE)
    found = contender.profile
    if found is None:
        return [], result
    servers = {name: usage.cpu_seconds(name, found.begun, found.ended) for name in ("Postgres", "Kafka")}
    return list(lines_of(found, rows=rows, servers=servers)), result


def lines_of(found: Profile, *, rows: int, servers: dict[str, float]) -> Iterator[dict[str, Any]]:
    """One line a stage, in the order in which a record meets them, and the other users of processor time."""
    order = list(STAGES)
    for stage in sorted(found.stages, key=lambda each: order.index(each.stage)):
        yield {
            "stage": stage.stage,
            "thread": stage.thread,
            "calls": stage.calls,
            **_times(stage.wall_seconds, stage.cpu_seconds, rows),
        }
    timed: dict[str, float] = {}
    for stage in found.stages:
        timed[stage.thread] = timed.get(stage.thread, 0.0) + stage.cpu_seconds
    between = sum(used - timed.get(thread, 0.0) for thread, used in found.threads.items())
    client = found.process_seconds - sum(found.threads.values())
    others = {"between the stages": between, "Kafka's client, its own threads": client, **servers}
    for name, used in others.items():
        yield {"stage": name, "thread": None, "calls": None, **_times(None, max(0.0, used), rows)}
    yield {
        "stage": "all",
        "thread": None,
        "calls": None,
        **_times(found.ended - found.begun, found.process_seconds, rows),
    }


def _times(wall: float | None, cpu: float, rows: int) -> dict[str, float | None]:
    return {
        "wall_seconds": None if wall is None else round(wall, 4),
        "cpu_seconds": round(cpu, 4),
        "wall_us_a_record": None if wall is None else round(1e6 * wall / rows, 3),
        "cpu_us_a_record": round(1e6 * cpu / rows, 3),
    }


def table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The same for people."""
    yield f"{'stage':34} {'thread':15} {'calls':>6} {'wall s':>8} {'cpu s':>8} {'wall us':>8} {'cpu us':>8}  a record"
    for line in lines:
        numbers = (line["wall_seconds"], line["cpu_seconds"], line["wall_us_a_record"], line["cpu_us_a_record"])
        told = " ".join(f"{'' if number is None else f'{number:.3f}':>8}" for number in numbers)
        yield f"{line['stage']:34} {line['thread'] or '':15} {line['calls'] or '':>6} {told}"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench profile", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="how many (default: 200000)")
    parser.add_argument("--shape", choices=SHAPES, default="keys", help="which rows, as in `harvest` (default: keys)")
    return parser


if __name__ == "__main__":
    main()
