"""The harvester with timers around its methods: `airflow-outbox harvest`, in a process of its own.

When so many records are purged, it writes one line of JSON to stderr: the time of each stage, by thread, since the view
began. Then it goes on until it is ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_outbox.cli import main as airflow_outbox
from benchmarks.profiling.stages import time_all
from benchmarks.profiling.timers import Reading, Timers

MARK = "profiled "
"""How the line begins."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """The time of a stage in one thread."""

    stage: str
    thread: str
    wall_seconds: float
    cpu_seconds: float
    calls: int


@dataclass(frozen=True, slots=True)
class Profile:
    """From when the view began (`begun`) until all was purged (`ended`), by `time.monotonic()`."""

    begun: float
    ended: float
    stages: list[StageTime]
    threads: dict[str, float]
    """Processor seconds of each of Python's threads."""
    process_seconds: float
    """Processor seconds of the whole process: the client's own threads have used what Python's have not."""


def between(before: Reading, after: Reading) -> Profile:
    stages = []
    for place, (wall, cpu, calls) in after.totals.items():
        wall_before, cpu_before, calls_before = before.totals.get(place, (0.0, 0.0, 0))
        thread, stage = place
        if calls > calls_before:
            stages.append(StageTime(stage, thread, wall - wall_before, cpu - cpu_before, calls - calls_before))
    threads = {name: used - before.threads.get(name, 0.0) for name, used in after.threads.items()}
    return Profile(before.moment, after.moment, stages, threads, after.process - before.process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the harvester's configuration")
    parser.add_argument("--rows", type=int, required=True)
    given = parser.parse_args()
    timers = Timers()
    begun: list[Reading] = []
    done: Counter[str] = Counter()

    def taken_over() -> None:
        begun[:] = [timers.reading()]

    def purged(records: int) -> None:
        done["purged"] += records
        if records and done["purged"] >= given.rows:
            line = json.dumps(asdict(between(begun[0], timers.reading())))
            print(f"{MARK}{line}", file=sys.stderr, flush=True)

    time_all(timers, purged=purged, taken_over=taken_over)
    airflow_outbox(["harvest", "-f", str(given.file)])


if __name__ == "__main__":
    main()
