"""Innocents around topics that are not there, or don't take records now."""

from __future__ import annotations

import itertools
import time

import pytest
from hostile.innocents import Innocents

pytestmark = pytest.mark.timed

UNKNOWN_TOPICS = 10_000
HELD_UP = 30.0
"""Seconds, on a busy machine. Topics that were asked for one by one, 50 a second, would take 200."""
A_NAME_EACH = f"""INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT {{topic}} || '-nowhere-' || number, 'h', 'v', '{{{{}}}}', '{{{{}}}}'
FROM generate_series(1, {UNKNOWN_TOPICS}) AS number"""


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
        innocents.stand(named="-nowhere-")

        def unseats_nobody() -> bool:
            seen = [event["event"] for event in process.events if event["event"] in ("retried", "stood_by")]
            return ("retried", "retried") in itertools.pairwise(seen)

        innocents.wait_until(unseats_nobody, "each time that they are asked for, the leader steps down")
        assert process.failures == [], innocents.story()
