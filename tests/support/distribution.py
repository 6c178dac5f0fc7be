"""Which tests share a process when several run at a time.

A file's tests run in one process, one after another, for they share servers. So do a folder's, where its servers take
long to start. A file of tests that only compute is divided into single tests. Tests that bound how long something may
take come last, in one process, and nothing runs beside them.
"""

from __future__ import annotations

import fcntl
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ALONE = "outbox/alone"
"""Where pytest's cache has the ids of the tests that are alone: the scheduler, in another process, sees only ids."""
AIRFLOW = "tests/integration/airflow/"
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


def is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def tell_the_scheduler(cache: pytest.Cache, items: Sequence[pytest.Item]) -> None:
    """Which tests are alone."""
    cache.set(ALONE, [item.nodeid for item in items if is_alone(item)])


def part_of(nodeid: str, alone: Container[str]) -> str:
    """The part that a test belongs to. A part runs in one process."""
    file = nodeid.partition("::")[0]
    if nodeid in alone:
        return "alone"
    if file in DIVIDED:
        return nodeid
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The longest first; then those that are alone, of which Airflow's come last: it idles noisily to the end."""

    def order(item: pytest.Item) -> tuple[int, int]:
        if is_alone(item):
            return 1, int(item.nodeid.startswith(AIRFLOW))
        return 0, next(
            (n for n, place in enumerate(LONGEST_FIRST) if item.nodeid.startswith(place)), len(LONGEST_FIRST)
        )

    return sorted(items, key=order)


@contextmanager
def room(*, alone: bool, lock: Path = Path(__file__)) -> Iterator[None]:
    """Let a test begin when it may: alone, or beside others that need not be alone."""
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


class Scheduling(LoadScopeScheduling):
    """Gives a process the next part when it is about to end its last one."""

    @cached_property
    def _alone(self) -> frozenset[str]:
        return frozenset(self.config.cache.get(ALONE, ()))

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid, self._alone)
