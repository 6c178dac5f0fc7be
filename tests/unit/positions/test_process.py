"""How long the replicator waits between two looks."""

from __future__ import annotations

import pytest

from airflow_outbox.positions.process import pause_after
from airflow_outbox.positions.replicator import SyncResult


@pytest.mark.parametrize(
    ("seconds", "used", "pause"),
    [
        (0.1, 0.004, 0.4),  # until the interval is over
        (2.0, 0.004, 2.0),  # as long as a long look takes
        (0.2, 0.04, 0.8),  # it uses 4% of a core
        (0.2, 0.4, 1.0),  # but waits for no more than a second
        (5.0, 2.0, 5.0),
    ],
)
def test_a_look_that_is_long_or_dear_is_followed_by_a_longer_pause(seconds: float, used: float, pause: float) -> None:
    assert pause_after(SyncResult({}, {}, seconds=seconds), 0.5, used=used) == pytest.approx(pause)
