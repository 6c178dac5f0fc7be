"""How long a topic that is deleted under load holds innocents up."""

from __future__ import annotations

import time
from statistics import median

import pytest
from hostile.innocents import Innocents, again_and_again
from hostile.mortal_topic import FEWER, MORE, MortalTopic

pytestmark = pytest.mark.timed

HELD_UP = 3.0
"""Seconds that others may have to wait, those of the test's own included."""
TRIES = 3
CASES = {"deleted": None, "made again with fewer": FEWER, "made again with more": MORE}
OLDEST = "SELECT extract(epoch FROM clock_timestamp() - min(create_time))::float FROM outbox WHERE kafka_key LIKE 'k%'"


@pytest.mark.parametrize("partitions", CASES.values(), ids=CASES)
def test_others_go_on(innocents: Innocents, partitions: int | None) -> None:
    def held_up(topic: MortalTopic) -> float:
        """The seconds that innocents have waited at most, until some that were written later are out."""
        topic.delete()
        if partitions is not None:
            topic.make_again(partitions)
        longest, over = 0.0, time.monotonic() + 2 * HELD_UP
        while time.monotonic() < over:
            [(waits,)] = innocents.outbox.query(OLDEST)
            longest = max(longest, waits or 0.0)
            if waits is not None and waits > HELD_UP:
                over = max(over, time.monotonic() + HELD_UP)
            time.sleep(0.02)
        return longest

    took = []
    for number in range(TRIES):
        topic = MortalTopic(innocents.outbox, name=f"-mortal-{number}")

        def write(topic: MortalTopic = topic) -> None:
            topic.write()
            innocents.write(records=20)

        with innocents.harvested(), again_and_again(write):  # a process that has just begun to know the topic
            innocents.wait_until(lambda topic=topic: topic.is_published, "nothing is published")
            took.append(held_up(topic))
    print(f"{took=}")
    assert median(took) <= HELD_UP, took
