"""The search in the extents topic, compared with a look at all of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.extents import ExtentsInMemory, entry_of, index_of

from airflow_outbox.harvest.protocol import extents
from airflow_outbox.harvest.protocol.ledger import Extent
from airflow_outbox.positions import index as index_module
from airflow_outbox.positions.index import BlockIndex
from airflow_outbox.values.extents import Around, BatchExtent, TopicPartitionId

IDS = {"orders": "o1"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "LATEST_INTERVAL", 5)
    monkeypatch.setattr(index_module, "BLOCK", 4)


def where(partition: int) -> TopicPartitionId:
    return TopicPartitionId("orders", "o1", partition)


def looked_for(found: Sequence[BatchExtent], key: object, name: str) -> Around:
    """Look at all extents of a partition."""
    keys = [extent.first if name == "offset" else extent.batch.order for extent in found]
    upto = [extent for extent, at in zip(found, keys, strict=True) if at <= key]  # type: ignore[operator]
    after = [extent for extent, at in zip(found, keys, strict=True) if at > key]  # type: ignore[operator]
    return Around(upto[-1] if upto else None, after[0] if after else None)


@st.composite
def topics(draw: st.DrawFn) -> ExtentsInMemory:
    """Batches that touch some of five partitions: one of them mostly, one hardly ever. Terms end, ends of aborted
    transactions lie between, and the topic has lost its beginning.
    """
    topic = ExtentsInMemory()
    ends = [0] * 5
    for number in range(1, draw(st.integers(0, 60)) + 1):
        touched = [partition for partition, odds in enumerate((2, 4, 8, 30, 60)) if draw(st.integers(0, odds)) == 0]
        places = []
        for partition in touched:
            first = ends[partition] + draw(st.integers(0, 3))
            last = first + draw(st.integers(0, 3))
            places.append(Extent("orders", partition, first, last, 1 + (last > first)))
            ends[partition] = last + 1
        topic.end += draw(st.sampled_from((0, 0, 0, 1, 9)))
        topic.write(entry_of(number, places), IDS)
        if draw(st.integers(0, 9)) == 0:
            topic.take_over()
    topic.start = draw(st.integers(0, topic.end))
    return topic


@settings(max_examples=150, deadline=None)
@given(topic=topics(), data=st.data(), most_extents=st.sampled_from((1, 10, 100_000)))
def test_it_finds_what_a_look_at_all_finds(topic: ExtentsInMemory, data: st.DataObject, most_extents: int) -> None:
    index = index_of([topic], most_extents=most_extents)
    all_extents = [extent for record in topic.read(0, 0, topic.end) for extent in record.extents]
    for partition in range(5):
        found = [extent for extent in all_extents if extent.where == where(partition)]
        for offset in data.draw(st.lists(st.integers(-1, 100), max_size=4)):
            assert index.at_offset(0, where(partition), offset) == looked_for(found, offset, "offset")
        for number in data.draw(st.lists(st.integers(0, 70), max_size=4)):
            assert index.at_batch(0, where(partition), (1, number)) == looked_for(found, (1, number), "batch")


def batches(topic: ExtentsInMemory, numbers: range) -> None:
    for number in numbers:
        topic.write(entry_of(number, [Extent("orders", 0, number * 10, number * 10 + 8, 9)]), IDS)


def test_what_comes_later_is_found_after_a_look_at_the_end() -> None:
    topic = ExtentsInMemory()
    batches(topic, range(1, 4))
    index = index_of([topic])
    assert index.at_offset(0, where(0), 999).upto == index.at_offset(0, where(0), 30).upto
    batches(topic, range(4, 6))
    assert index.at_offset(0, where(0), 999).upto == index.at_offset(0, where(0), 30).upto
    index.reach({0: topic.reaches})
    found = index.at_offset(0, where(0), 999).upto
    assert found is not None
    assert found.batch.number == 5


def test_a_topic_that_was_made_again_is_read_again() -> None:
    topic = ExtentsInMemory()
    batches(topic, range(1, 9))
    shards = [topic]
    index = index_of(shards)
    assert index.at_offset(0, where(0), 999).upto is not None
    shards[0] = ExtentsInMemory()
    index.reach({0: shards[0].reaches})
    assert index.at_offset(0, where(0), 999) == Around(None, None)


def test_extents_of_another_outbox_are_left_out() -> None:
    topic = ExtentsInMemory()
    batches(topic, range(1, 3))
    index = BlockIndex(topic.read, UUID(int=2))
    index.reach({0: topic.reaches})
    assert index.at_offset(0, where(0), 999) == Around(None, None)


def test_it_knows_whether_it_has_all_batches() -> None:
    topic = ExtentsInMemory()
    index = index_of([topic])
    assert not index.is_unbroken_after(0, (1, 0)), "nothing was ever written"
    batches(topic, range(3, 6))
    topic.end += 20  # aborted ones
    index.reach({0: topic.reaches}, {0: (1, 5)})
    answers = {number: index.is_unbroken_after(0, (1, number)) for number in (1, 2, 3, 5)}
    assert answers == {1: False, 2: True, 3: True, 5: True}
    assert not index.is_unbroken_after(0, (2, 3)), "another incarnation"
    assert not index.is_unbroken_after(1, (1, 3)), "another shard"
    index.reach({0: topic.reaches}, {0: (1, 6)})
    assert not index.is_unbroken_after(0, (1, 3)), "the last batch has no extents"
    index.reach({0: topic.reaches})
    assert not index.is_unbroken_after(0, (1, 3)), "nobody knows which is the last batch"
    topic.start = topic.end
    index.reach({0: topic.reaches}, {0: (1, 5)})
    assert not index.is_unbroken_after(0, (1, 3)), "they are not kept any more"


def test_it_is_whole_only_with_each_batch_from_the_first_one() -> None:
    topic = ExtentsInMemory()
    index = index_of([topic])
    assert index.is_whole(0), "the shard has no batch"
    assert not index.is_whole(1), "nobody writes down what that shard does"
    index.reach({0: topic.reaches}, {0: (1, 1)})
    assert not index.is_whole(0)
    batches(topic, range(1, 4))
    index.reach({0: topic.reaches}, {0: (1, 3)})
    assert index.is_whole(0)
    index.reach({0: topic.reaches}, {0: (1, 4)})
    assert not index.is_whole(0), "the last batch has no extents"
    index.reach({0: topic.reaches}, {})
    assert not index.is_whole(0), "its ledger was lost"
    topic.start = 1
    index.reach({0: topic.reaches}, {0: (1, 3)})
    assert not index.is_whole(0), "some are not kept any more"
    later = ExtentsInMemory()
    batches(later, range(2, 4))
    index = index_of([later])
    index.reach({0: later.reaches}, {0: (1, 3)})
    assert not index.is_whole(0), "the first batch has no extents"
    later.write(entry_of(1, [], incarnation=2), IDS)
    index.reach({0: later.reaches}, {0: (2, 1)})
    assert not index.is_whole(0), "nobody knows about the incarnation before"


@pytest.fixture
def long_topic() -> ExtentsInMemory:
    """Two thousand batches; one partition has two of them, and one the first of them only."""
    topic = ExtentsInMemory()
    for number in range(1, 2001):
        partitions = [0, *([1] if number in (500, 1500) else []), *([2] if number == 1 else [])]
        topic.write(entry_of(number, [Extent("orders", each, number, number, 1) for each in partitions]), IDS)
    return topic


@pytest.mark.parametrize("partition", [0, 1, 2, 3])
@pytest.mark.parametrize("offset", [0, 1, 700, 1600, 9999])
def test_a_search_reads_few_blocks_however_sparse_a_partition_is(
    long_topic: ExtentsInMemory, partition: int, offset: int
) -> None:
    index = index_of([long_topic])
    index.at_offset(0, where(partition), offset)
    halvings = log2(long_topic.end / index_module.BLOCK)
    assert index.blocks_read <= 4 * halvings


def test_memory_is_bounded(long_topic: ExtentsInMemory) -> None:
    index = index_of([long_topic], most_extents=50)
    for offset in range(0, 2000, 3):
        index.at_offset(0, where(0), offset)
        assert index.extents_in_memory <= 60
