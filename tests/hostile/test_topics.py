"""Innocents around topics that are not there, or don't take records now."""

from __future__ import annotations

import itertools

import pytest
from hostile.innocents import Innocents
from hostile.unknown_topics import A_NAME_EACH


@pytest.mark.long(mode="atomic")
@pytest.mark.long(mode="at least once")
def test_ten_thousand_unknown_topics_are_set_aside_and_asked_for_again(innocents: Innocents) -> None:
    with innocents.harvested() as process:
        innocents.around(A_NAME_EACH)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "records of unknown topics wait")
        process.wait_for("retried")  # their topics are asked for again, all of them
        innocents.around(lambda: None)
        innocents.stand(named="-nowhere-")

        def unseats_nobody() -> bool:
            seen = [event["event"] for event in process.events if event["event"] in ("retried", "stood_by")]
            return ("retried", "retried") in itertools.pairwise(seen)

        innocents.wait_until(unseats_nobody, "each time that they are asked for, the leader steps down")
        assert process.failures == [], innocents.story()
