"""CloudEvents as records, read back by the SDK of CloudEvents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_outbox import OutboxRecord, cloud_event
from airflow_outbox.errors import InvalidCloudEventError

NOW = datetime(2026, 11, 24, 3, 4, 5, 678900, UTC)


def read(record: OutboxRecord) -> BaseCloudEvent:
    """The event that a consumer with the SDK makes of a record."""
    headers = {name: value.encode() if isinstance(value, str) else value for name, value in record.header_pairs()}
    value = record.value.encode() if isinstance(record.value, str) else record.value
    return from_kafka_event(KafkaMessage(headers, record.key, value if value is not None else b""))


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize(
    ("data", "content_type", "read_as"),
    [
        ({"state": "paid", "of": [1, None, "ä"]}, None, {"state": "paid", "of": [1, None, "ä"]}),
        ('{"total": 1.10}', "application/vnd.shop+json; charset=utf-8", {"total": 1.1}),
        (b'{"total": 1.10}', "application/json", {"total": 1.1}),
        ("<a>&</a>", "application/xml", "<a>&</a>"),
        (b"\x00\xff", "application/octet-stream", b"\x00\xff"),
    ],
)
def test_the_sdk_reads_the_same_event(data: Any, content_type: str | None, read_as: Any, structured: bool) -> None:
    record = cloud_event(
        "orders", "17", data, source="/shop", type="com.example.paid", id="a-1", subject="order/ä", time=NOW,
        datacontenttype=content_type, dataschema="https://example.com/order", structured=structured, partition=3,
        extensions={"tenant": "north", "attempt": 2, "test": True},
    )  # fmt: skip
    assert (record.topic, record.key, record.partition) == ("orders", "17", 3)
    event = read(record)
    assert event.get_data() == read_as
    attributes = event.get_attributes() | {"attempt": str(event.get_extension("attempt"))}
    assert str(attributes.pop("test")).lower() == "true"
    assert attributes == {
        "specversion": "1.0",
        "id": "a-1",
        "source": "/shop",
        "type": "com.example.paid",
        "subject": "order/ä",
        "time": NOW,
        "datacontenttype": content_type or "application/json",
        "dataschema": "https://example.com/order",
        "tenant": "north",
        "attempt": "2",
        "partitionkey": "17",  # the SDK's name for a record's key
    }


def test_binary_mode_leaves_the_value_alone() -> None:
    data = '{ "total": 1.10 }'
    record = cloud_event("t", "k", data, source="/s", type="t", datacontenttype="application/json")
    assert record.value == data
    structured = cloud_event("t", "k", data, source="/s", type="t", datacontenttype="text/json", structured=True)
    assert str(structured.value).endswith(f'"data":{data}}}')
    assert structured.header_pairs() == [("content-type", "application/cloudevents+json; charset=utf-8")]


def test_an_event_without_data() -> None:
    tombstone = cloud_event("t", "k", source="/s", type="t")
    assert tombstone.value is None
    assert "content-type" not in dict(tombstone.header_pairs())
    assert read(cloud_event("t", "k", source="/s", type="t", structured=True)).get_data() is None


def test_each_event_has_an_id_of_its_own() -> None:
    ids = {dict(cloud_event("t", "k", source="/s", type="t").header_pairs())["ce_id"] for _ in range(2)}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("arguments", "attribute"),
    [
        ({"source": ""}, "source"),
        ({"id": ""}, "id"),
        ({"type": 7}, "type"),
        ({"subject": "a\nb"}, "subject"),
        ({"time": datetime(2026, 1, 1)}, "time"),
        ({"data": "text"}, "datacontenttype"),
        ({"data": {1, 2}}, "data"),
        ({"data": float("nan")}, "data"),
        ({"data": "{", "datacontenttype": "application/json", "structured": True}, "data"),
        ({"extensions": {"Upper": "x"}}, "Upper"),
        ({"extensions": {"id": "x"}}, "id"),
        ({"extensions": {"data": "x"}}, "data"),
        ({"extensions": {"large": 2**31}}, "large"),
        ({"extensions": {"float": 1.5}}, "float"),
    ],
)
def test_what_is_no_cloud_event_is_refused(arguments: dict[str, Any], attribute: str) -> None:
    with pytest.raises(InvalidCloudEventError) as caught:
        cloud_event("t", "k", **{"source": "/s", "type": "t", **arguments})
    assert caught.value.attribute == attribute


@settings(max_examples=30)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_data_is_the_same_in_both_modes(data: Any) -> None:
    binary, structured = (
        read(cloud_event("t", "k", [data], source="/s", type="t", structured=mode)) for mode in (False, True)
    )
    assert binary.get_data() == structured.get_data() == [data]
