"""Innocents around topics that are not there, or don't take records now."""

from __future__ import annotations

import time

import pytest
from hostile.innocents import Innocents

pytestmark = pytest.mark.alone

UNKNOWN_TOPICS = 10_000
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
        innocents.around(A_NAME_EACH, within=5 + alone)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "records of unknown topics wait", within=30)
        process.wait_for("retried")  # their topics are asked for again, all of them
        innocents.around(lambda: None, within=5 + alone)
        innocents.stand(named="-nowhere-")
        assert not [event for event in process.events if event["event"] in ("error", "stood_by")], innocents.story()
