"""CloudEvents written by Spark, read by the SDK of CloudEvents."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from integration.spark.shop import FILL_ORDERS, Shop
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


@pytest.fixture
def events(orders: DataFrame) -> DataFrame:
    """Events, of which some are tombstones, some have a subject, and all a header of their own."""
    number = F.col("number")
    return orders.withColumns(
        {
            "value": F.when(number % 3 != 0, F.col("value")),
            "ce_id": F.concat(F.lit("order-"), number),
            "ce_source": F.lit("/shop"),
            "ce_type": F.lit("com.example.paid"),
            "ce_subject": F.when(number % 2 == 0, F.lit("ä, \"b\" {c} \\d")),
            "ce_time": F.timestamp_millis(number),
            "ce_attempt": F.lit(2),
        }
    ).where("number < 20")  # fmt: skip


def test_rows_are_events(shop: Shop, events: DataFrame) -> None:
    shop.write(events, format="cloudevents", orderBy="number", commitSql=FILL_ORDERS)
    rows = shop.rows("SELECT kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM outbox ORDER BY id")
    assert len(rows) == 20
    for number, (key, value, names, values) in enumerate(rows):
        assert (names[0], values[0]) == ("schema", "order/1")
        headers = {name: text.encode() for name, text in zip(names, values, strict=True)}
        event = from_kafka_event(KafkaMessage(headers, key, (value or "").encode()))
        expected: dict[str, Any] = {
            "specversion": "1.0",
            "id": f"order-{number}",
            "source": "/shop",
            "type": "com.example.paid",
            "time": datetime.fromtimestamp(number / 1000, UTC),
            "attempt": "2",
            "partitionkey": key,
        }
        if number % 2 == 0:
            expected["subject"] = 'ä, "b" {c} \\d'
        if number % 3 != 0:
            expected["datacontenttype"] = "application/json"
            assert event.get_data() == {"id": number}
        assert event.get_attributes() | {"attempt": event.get_extension("attempt")} == expected


def test_a_row_without_an_id_is_named(shop: Shop, events: DataFrame) -> None:
    frame = events.coalesce(1).orderBy("number").withColumn("ce_id", F.when(F.col("number") != 17, F.col("ce_id")))
    with pytest.raises(PySparkException, match=r"row 17 of partition 0.*: column ce_id: null or empty"):
        shop.write(frame, format="cloudevents", orderBy="number")
    assert shop.counts() == (0, 0, 0)
