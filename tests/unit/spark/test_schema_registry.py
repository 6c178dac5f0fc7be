"""A Protobuf message's place in its file, as confluent-kafka reads it."""

from __future__ import annotations

from io import BytesIO

import pytest
from confluent_kafka.schema_registry.common.serde import SchemaId

from airflow_outbox.spark.schema_registry import _places


@pytest.mark.parametrize("indexes", [[0], [1], [2, 0], [100, 3]])
def test_places_are_read_as_they_were_written(indexes: list[int]) -> None:
    schema = SchemaId("PROTOBUF")
    payload = schema.from_bytes(BytesIO(b"\x00" + (7).to_bytes(4, "big") + _places(indexes) + b"payload"))
    assert (schema.id, schema.message_indexes, payload.read()) == (7, indexes, b"payload")


def test_other_formats_have_none() -> None:
    assert _places(None) == b""
