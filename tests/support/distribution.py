"""Which tests share a process when several run at a time.

A file's tests run in one process, one after another, for they share servers. So do a folder's, where its servers take
long to start. A file of tests that only compute is divided into single tests. Tests that bound how long something may
take come last, in one process, and nothing runs beside them.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ALONE = (
    "tests/faults/test_librdkafka.py",
    "tests/faults/test_long_transactions.py",
    "tests/faults/test_markers.py",
    "tests/faults/test_poison.py",
    "tests/faults/test_refused_by_the_broker.py",
    "tests/faults/test_take_over.py",
    "tests/faults/test_turns.py",
    "tests/faults/test_verdict.py",
    "tests/faults/test_zombies.py",
    "tests/hostile/test_bad_days.py",
    "tests/hostile/test_memory.py",
    "tests/hostile/test_quotas.py",
    "tests/hostile/test_refused_by_the_broker.py",
    "tests/hostile/test_rows.py",
    "tests/hostile/test_topics.py",
    "tests/secure/test_bad_days.py",
    "tests/secure/test_bad_starts.py",
    "tests/integration/airflow/",
)
"""What bounds seconds, or has sessions that a busy machine ends. Airflow is the last: it idles noisily to the end."""
TOGETHER = (
    "tests/faults/spark/",
    "tests/integration/spark/",
)
DIVIDED = (
    "tests/simulation/test_histories.py",
    "tests/simulation/test_planted.py",
)
LONGEST_FIRST = (
    "tests/faults/spark/",
    "tests/integration/spark/",
    "tests/integration/test_demo.py",
    "tests/faults/",
    "tests/hostile/",
    "tests/secure/",
    "tests/integration/",
    "tests/simulation/",
)
"""In this order they begin, and all others after them: no long part is left to the end."""


def place_of(nodeid: str, places: Sequence[str]) -> int:
    """Which of these files and folders a test is in; their number where it is in none."""
    return next((n for n, place in enumerate(places) if nodeid.startswith(place)), len(places))


def is_alone(nodeid: str) -> bool:
    return place_of(nodeid, ALONE) < len(ALONE)


def part_of(nodeid: str) -> str:
    """The part that a test belongs to. A part runs in one process."""
    file = nodeid.partition("::")[0]
    if is_alone(nodeid):
        return "alone"
    if file in DIVIDED:
        return nodeid
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    def order(item: pytest.Item) -> tuple[bool, int]:
        alone = is_alone(item.nodeid)
        return alone, place_of(item.nodeid, ALONE if alone else LONGEST_FIRST)

    return sorted(items, key=order)


@contextmanager
def room(nodeid: str, lock: Path = Path(__file__)) -> Iterator[None]:
    """Let a test begin when it may: alone, or beside others that need not be alone."""
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX if is_alone(nodeid) else fcntl.LOCK_SH)
        yield


class Scheduling(LoadScopeScheduling):
    """Gives a process the next part when it is about to end its last one."""

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)
