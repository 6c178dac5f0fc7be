"""The records of the extents topic, and what a term goes on from."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from support.extents import OUTBOX, VIEW, ExtentsInMemory, entry_of

from airflow_outbox.errors import HistoryError, SchemaVersionError
from airflow_outbox.harvest.protocol import extents
from airflow_outbox.harvest.protocol.extents import ExtentsState, parsed
from airflow_outbox.harvest.protocol.ledger import Entry, Extent
from airflow_outbox.values.extents import BatchExtent, BatchId, TopicPartitionId

IDS = {"orders": "o1", "flights": "f1"}
ORDERS = TopicPartitionId("orders", "o1", 0)


def test_a_record_tells_a_batch_and_where_its_records_are() -> None:
    entry = entry_of(5, [Extent("orders", 0, 10, 14, 4), Extent("orders", 1, 3, 3, 1), Extent("flights", 0, 0, 9, 10)])
    [(key, value)] = ExtentsState().records(entry, IDS)
    assert key == "batch/5"
    assert value is not None
    assert json.loads(value) == {
        "format": 1,
        "outbox_id": str(OUTBOX),
        "incarnation": 1,
        "shard": 0,
        "view": str(VIEW),
        "batch": 5,
        "since": 5,
        "extents": [
            ["orders", "o1", [[0, 10, 14, 4, None], [1, 3, 3, 1, None]]],
            ["flights", "f1", [[0, 0, 9, 10, None]]],
        ],
        "latest": [],
    }
    record = parsed(77, value)
    batch = BatchId(OUTBOX, 1, 0, VIEW, 5)
    assert (record.offset, record.batch) == (77, batch)
    assert record.extents[0] == BatchExtent(batch, ORDERS, 10, 14, 4, None, 5)
    assert record.extents[0].gap == 1


def test_links_lead_from_an_extent_to_the_one_before_it_also_across_terms() -> None:
    topic = ExtentsInMemory()
    topic.write(entry_of(1, [Extent("orders", 0, 0, 4, 5)]), IDS)
    topic.write(entry_of(2, [Extent("flights", 0, 0, 4, 5)]), IDS)
    topic.take_over()
    topic.write(entry_of(3, [Extent("orders", 0, 6, 9, 4)]), IDS)
    found = topic.read(0, 0, topic.end)
    assert [record.offset for record in found] == [0, 2, 4]
    assert [extent.before for record in found for extent in record.extents] == [None, None, 0]
    assert [record.since for record in found] == [1, 1, 1]


@pytest.mark.parametrize("later", [entry_of(5, []), entry_of(3, [], incarnation=2)])
def test_a_break_begins_another_series(later: Entry) -> None:
    topic = ExtentsInMemory()
    topic.write(entry_of(1, []), {})
    topic.write(entry_of(2, []), {})
    topic.write(later, {})
    topic.write(replace(later, batch=later.batch + 1), {})
    assert [record.since for record in topic.read(0, 0, topic.end)] == [1, 1, later.batch, later.batch]


def test_a_batch_whose_topic_has_no_known_id_is_left_out_and_breaks_the_series() -> None:
    topic = ExtentsInMemory()
    topic.write(entry_of(1, [Extent("orders", 0, 0, 0, 1)]), IDS)
    assert topic.state.records(entry_of(2, [Extent("unknown", 0, 0, 0, 1)]), IDS) == []
    assert topic.state.records(entry_of(2, [Extent("orders", 0, 0, 0, 1)]), {"orders": ""}) == []
    topic.write(entry_of(3, [Extent("orders", 0, 2, 2, 1)]), IDS)
    assert [record.since for record in topic.read(0, 0, topic.end)] == [1, 3]


def test_a_topic_of_another_outbox_is_left_alone() -> None:
    topic = ExtentsInMemory()
    topic.write(entry_of(1, [Extent("orders", 0, 0, 0, 1)]), IDS)
    topic.take_over()
    other = replace(entry_of(2, [Extent("orders", 0, 2, 2, 1)]), outbox_id=UUID(int=2))
    assert topic.state.records(other, IDS) == []


def test_now_and_then_a_record_tells_the_last_extents_of_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "LATEST_INTERVAL", 3)
    topic = ExtentsInMemory()
    for number in range(1, 8):
        name = "flights" if number == 1 else "orders"
        topic.write(entry_of(number, [Extent(name, 0, number, number, 1)]), IDS)
        topic.take_over()
    latest = [record.latest for record in topic.read(0, 0, topic.end)]
    flights = TopicPartitionId("flights", "f1", 0)
    assert latest == [{}, None, None, {flights: 0, ORDERS: 4}, None, None, {flights: 0, ORDERS: 10}]


def test_what_the_topic_no_longer_keeps_and_topics_made_again_are_forgotten() -> None:
    topic = ExtentsInMemory()
    topic.write(entry_of(1, [Extent("orders", 0, 0, 0, 1)]), IDS)
    topic.write(entry_of(2, [Extent("flights", 0, 0, 0, 1)]), IDS)
    topic.start = 1
    topic.take_over()
    topic.write(entry_of(3, [Extent("orders", 0, 3, 3, 1), Extent("flights", 0, 3, 3, 1)]), IDS)
    topic.write(entry_of(4, [Extent("flights", 0, 0, 0, 1)]), {"flights": "f2"})
    befores = [extent.before for record in topic.read(0, 4, topic.end) for extent in record.extents]
    assert befores == [None, 2, None]


def test_a_batch_of_very_many_partitions_takes_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "_MOST_PARTITIONS", 2)
    topic = ExtentsInMemory()
    topic.write(entry_of(1, [Extent("orders", number, 0, 0, 1) for number in range(5)]), IDS)
    topic.write(entry_of(2, [Extent("orders", number, 2, 2, 1) for number in range(5)]), IDS)
    found = topic.read(0, 0, topic.end)
    assert [len(record.extents) for record in found] == [2, 2, 1, 2, 2, 1]
    assert [extent.before for record in found[3:] for extent in record.extents] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("value", [b"", b"7", b"{}", b'{"format": 1}', "é".encode("latin-1")])
def test_a_foreign_record_is_told_from_ours(value: bytes) -> None:
    with pytest.raises(HistoryError, match="offset 3 was not written by airflow-outbox"):
        parsed(3, value)


def test_a_record_of_a_later_release_is_not_guessed_at() -> None:
    with pytest.raises(SchemaVersionError, match="Install a newer"):
        parsed(3, b'{"format": 2}')


@pytest.mark.parametrize(("topics", "length", "partitions"), [(9000, 60, 1), (4000, 249, 1), (20, 20, 3000)])
def test_no_record_is_larger_than_brokers_take(topics: int, length: int, partitions: int) -> None:
    state = ExtentsState()
    names = [f"{number:05d}".ljust(length, "x") for number in range(topics)]
    ids = dict.fromkeys(names, "MkhXBaBmTmaqbnLlPGLLMA")
    large = 10**12
    places = [Extent(name, n, large, large + 7, 8) for name in names for n in range(partitions)]
    for number in (1, extents.LATEST_INTERVAL + 1):
        state._since_latest = extents.LATEST_INTERVAL
        for _, value in state.records(entry_of(number, places), ids):
            assert value is not None
            assert len(value) < 1_000_000
            state.written(large + number)


def test_what_a_term_goes_on_from_is_told_every_few_records_however_many_partitions_there_are() -> None:
    topic = ExtentsInMemory()
    for number in range(1, 2 * extents.LATEST_INTERVAL + 2):
        places = [Extent("orders", n, number, number, 1) for n in range(1000 if number == 1 else 1)]
        topic.write(entry_of(number, places), IDS)
    told = [record.batch.number for record in topic.read(0, 0, topic.end) if record.latest is not None]
    assert told == [1, extents.LATEST_INTERVAL + 1, 2 * extents.LATEST_INTERVAL + 1]
