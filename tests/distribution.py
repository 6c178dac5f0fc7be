"""Which tests share a process when several run at a time.

A file's tests run in one process, one after another, for they share servers. So do a folder's, where its servers take
long to start. A file of tests that only compute is divided into single tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = (
    "tests/faults/spark/",
    "tests/integration/airflow/",
    "tests/integration/spark/",
    "tests/secure/",
)
DIVIDED = (
    "tests/simulation/test_histories.py",
    "tests/simulation/test_planted.py",
)
LONGEST_FIRST = (
    "tests/integration/airflow/",
    "tests/integration/spark/",
    "tests/faults/",
    "tests/secure/",
    "tests/integration/",
    "tests/simulation/",
)
"""In this order they begin, and all others after them: no long part is left to the end."""


def part_of(nodeid: str) -> str:
    """The part that a test belongs to. A part runs in one process."""
    file = nodeid.partition("::")[0]
    if file in DIVIDED:
        return nodeid
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    def place(item: pytest.Item) -> int:
        return next((n for n, start in enumerate(LONGEST_FIRST) if item.nodeid.startswith(start)), len(LONGEST_FIRST))

    return sorted(items, key=place)


class Scheduling(LoadScopeScheduling):
    """Gives a process the next part when it is about to end its last one."""

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)
