"""Calls of a batch that a machine with time to spare hardly ever needs."""

from __future__ import annotations

from collections import Counter

import pytest
from integration.counted_harvest import BATCHES, Harvested, harvested_backlog  # noqa: F401

pytestmark = pytest.mark.timed


def test_the_log_is_seldom_brought_to_disk_and_it_is_seldom_asked_what_can_be_read(
    harvested: Harvested,
) -> None:
    """The first look at rows has written hints into Postgres' log; and the next batches tell what can be read."""
    names = Counter(statement.name for statement in harvested.statements)
    assert all(names[name] <= BATCHES // 4 for name in ("flushed", "flush")), names
    assert harvested.counted.get("asked", 0) <= BATCHES // 4
