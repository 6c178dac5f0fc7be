"""The sizes of records, held against what Kafka's client makes of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from airflow_outbox.harvest.kafka.record_size import (
    client_limit,
    compresses,
    least_size_for_broker,
    size_for_broker,
    size_for_client,
)
from airflow_outbox.values.records import MarkedRecord

LIMIT = 50_000


def record(key: Any = "k", value: Any = "v", headers: dict[str, str] | None = None) -> MarkedRecord:
    headers = headers or {}
    return MarkedRecord(1, "t", key, value, list(headers), list(headers.values()), None)


@pytest.mark.parametrize(
    "headers", [{}, {"": ""}, {"h": "ü" * 70}, {"n" * 9000: "v"}, {str(n): "1" for n in range(70)}]
)
@pytest.mark.parametrize("key", ["", "kü", b"\xff" * 300])
def test_the_client_takes_a_record_up_to_its_limit(key: Any, headers: dict[str, str]) -> None:
    room = LIMIT - size_for_client(record(key, "", headers))
    producer = Producer({"message.max.bytes": LIMIT, "log_level": 0})
    producer.produce("t", "x" * room, key, headers=dict(headers))
    assert size_for_client(record(key, "x" * room, headers)) == LIMIT
    with pytest.raises(KafkaException) as refused:
        producer.produce("t", "x" * (room + 1), key, headers=dict(headers))
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    producer.purge()


@pytest.mark.parametrize(
    ("producer", "limit", "compressed"),
    [
        ({}, 1_000_000, False),
        ({"message.max.bytes": "2000", "compression.type": "lz4"}, 2000, True),
        ({"compression.type": "lz4", "compression.codec": "none"}, 1_000_000, False),
    ],
)
def test_settings_by_any_of_their_names(producer: dict[str, Any], limit: int, compressed: bool) -> None:
    assert (client_limit(producer), compresses(producer)) == (limit, compressed)


def test_what_compresses_well_may_be_small_and_what_does_not_can_not() -> None:
    noise = random.Random(1).randbytes(100_000)
    assert least_size_for_broker(record(value="x" * 900_000)) < 1000
    assert least_size_for_broker(record(value=noise * 8)) < 150_000  # zstd finds what was said long before
    assert 80_000 < least_size_for_broker(record(value=noise)) < size_for_broker(record(value=noise))
