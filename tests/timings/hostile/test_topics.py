"""How long topics that are not there hold innocents up."""

from __future__ import annotations

import time

import pytest
from hostile.innocents import Innocents
from hostile.unknown_topics import A_NAME_EACH

pytestmark = pytest.mark.timed

HELD_UP = 30.0
"""Seconds, on a busy machine. Topics that were asked for one by one, 50 a second, would take 200."""


@pytest.mark.long(mode="atomic")
@pytest.mark.long(mode="at least once")
def test_ten_thousand_unknown_topics_hold_nobody_up(innocents: Innocents) -> None:
    with innocents.harvested() as process:
        began = time.monotonic()
        innocents.around(lambda: None)
        alone = time.monotonic() - began
        innocents.around(A_NAME_EACH, within=HELD_UP + alone)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "records of unknown topics wait")
        process.wait_for("retried")  # their topics are asked for again, all of them
        innocents.around(lambda: None, within=HELD_UP + alone)
