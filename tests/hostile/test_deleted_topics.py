"""Innocents around a topic that is deleted, and made again with another number of partitions."""

from __future__ import annotations

import pytest
from hostile.innocents import Innocents, again_and_again
from hostile.mortal_topic import FEWER, MORE, MortalTopic


@pytest.mark.parametrize("partitions", [FEWER, MORE], ids=["fewer", "more"])
def test_a_topic_that_is_deleted_under_load_is_set_aside_and_goes_on_when_it_is_made_again(
    innocents: Innocents, partitions: int
) -> None:
    with innocents.harvested():
        topic = MortalTopic(innocents.outbox)

        def write() -> None:
            topic.write()
            innocents.write(records=20)

        with again_and_again(write):
            innocents.wait_until(lambda: topic.is_published, "nothing is published")
            topic.delete()
            innocents.wait_until(lambda: topic.is_set_aside, "it is not set aside")
        innocents.come_out()
        innocents.stand(named="unknown_topic")
        waiting = topic.set_aside()
        topic.make_again(partitions)
        topic.write()
        innocents.wait_until(lambda: topic.is_out, "its records wait")
        innocents.around(lambda: None)
        lanes = topic.lanes()  # what was published before the deletion went with the topic
        assert lanes == topic.lanes_after_deletion(lanes)
        assert waiting <= {number for numbers in lanes.values() for number in numbers}


@pytest.mark.parametrize(
    ("mode", "partitions", "others"),
    [
        pytest.param("single", FEWER, 0, id="fewer"),
        pytest.param("single", MORE, 0, id="more"),
        pytest.param("single", FEWER, 1_000, id="fewer, beside others"),
        pytest.param("atomic", MORE, 1_000, id="more, atomic, beside others"),
    ],
)
def test_keys_go_by_the_new_number_of_partitions_from_the_first_record_on(
    innocents: Innocents, partitions: int, others: int
) -> None:
    with innocents.harvested() as process:
        topic = MortalTopic(innocents.outbox)
        topic.write()
        innocents.around(topic.write)
        innocents.wait_until(lambda: topic.is_out, "its records wait")
        assert topic.lanes() == topic.lanes_from(0)
        first = topic.written
        topic.delete()
        topic.make_again(partitions)
        topic.write_by_others(others)
        topic.write()
        innocents.around(topic.write)
        innocents.wait_until(lambda: topic.is_out, "its records wait")
        assert topic.lanes() == topic.lanes_from(first)
        assert len(process.failures) == 1, process.failures
