"""What a process takes that harvests many outboxes."""

from __future__ import annotations

import pytest

from benchmarks.many import MOST_CONNECTIONS, MOST_MB, tenants


@pytest.mark.long
def test_two_hundred_of_which_ten_are_busy_stay_within_the_bounds() -> None:
    with tenants(200) as bench:
        idle, busy = bench.together(10, rate=20.0, seconds=10.0)
    assert busy["records"] == 10 * 20 * 10
    assert max(idle["memory_mb"], busy["memory_mb"]) < MOST_MB
    assert max(idle["connections"], busy["connections"]) <= MOST_CONNECTIONS
