"""The trace context of Spark's driver on the records of a write, with a real session and a real outbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.spark.shop import FILL_ORDERS, RECORDS, Shop
from pyspark.sql import DataFrame, SparkSession
from support.tracing import Traces

from airflow_outbox.spark import register, settings, trace_headers

HEADERS = "SELECT kafka_header_keys, kafka_header_values, count(*) FROM outbox GROUP BY 1, 2 ORDER BY 1"
OWN = f"00-{'a' * 32}-{'b' * 16}-01"
TASKS = {"traceparent": f"00-{'c' * 32}-{'d' * 16}-01", "tracestate": "vendor=x"}
WITH_OWN = f"""
CASE id % 3
    WHEN 0 THEN array(named_struct('key', 'a', 'value', '1'), named_struct('key', 'traceparent', 'value', '{OWN}'))
    WHEN 1 THEN array(named_struct('key', 'a', 'value', '1'))
END AS headers
"""


@pytest.fixture
def context(traces: Traces) -> Iterator[str]:
    """The driver's `traceparent`, while a span is current there."""
    with traces.tracer.start_as_current_span("job"):
        yield trace_headers()["traceparent"]


@pytest.mark.parametrize("order", [{}, {"orderBy": "number", "commitSql": FILL_ORDERS}], ids=["text", "rows"])
@pytest.mark.parametrize("inline_bytes", ["0", "1000000"], ids=["staged", "inline"])
def test_every_record_carries_the_drivers_context(
    shop: Shop, orders: DataFrame, context: str, inline_bytes: str, order: dict[str, str]
) -> None:
    shop.write(orders, inlineBytes=inline_bytes, **order, **trace_headers())
    assert shop.rows(HEADERS) == [(["schema", "traceparent"], ["order/1", context], RECORDS)]


@pytest.mark.parametrize("order", [{}, {"orderBy": "id"}], ids=["text", "rows"])
def test_records_keep_a_context_of_their_own(
    shop: Shop, spark: SparkSession, context: str, order: dict[str, str]
) -> None:
    frame = spark.range(9).selectExpr("id", "'t' AS topic", "'k' AS key", "'v' AS value", WITH_OWN)
    shop.write(frame, **order, **trace_headers())
    assert sorted(shop.rows(HEADERS)) == sorted(
        [
            (["a", "traceparent"], ["1", OWN], 3),
            (["a", "traceparent"], ["1", context], 3),
            (["traceparent"], [context], 3),
        ]
    )


@pytest.mark.parametrize("order", [{}, {"orderBy": "id"}], ids=["text", "rows"])
def test_records_without_headers_and_with_common_ones(
    shop: Shop, spark: SparkSession, context: str, order: dict[str, str]
) -> None:
    frame = spark.range(3).selectExpr("id", "'t' AS topic", "'k' AS key", "'v' AS value")
    shop.write(frame, **order, **trace_headers())
    assert shop.rows(HEADERS) == [(["traceparent"], [context], 3)]
    shop.connection.execute("TRUNCATE outbox")
    shop.write(frame, headers='{"a": "1"}', **order, **trace_headers())
    assert shop.rows(HEADERS) == [(["a", "traceparent"], ["1", context], 3)]
    shop.connection.execute("TRUNCATE outbox")
    shop.write(frame, headers=f'{{"traceparent": "{OWN}"}}', **order, **trace_headers())
    assert shop.rows(HEADERS) == [(["traceparent"], [OWN], 3)]


def test_without_a_span_nothing_is_added(shop: Shop, orders: DataFrame) -> None:
    shop.write(orders, **trace_headers())
    assert shop.rows(HEADERS) == [(["schema"], ["order/1"], RECORDS)]


def test_the_records_of_a_stream(shop: Shop, spark: SparkSession, context: str, tmp_path: Path) -> None:
    stored = spark.range(5).selectExpr("'t' AS topic", "'k' AS key", "CAST(id AS string) AS value")
    stored.write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema(stored.schema).parquet(str(tmp_path / "in"))
    writer = frame.writeStream.format("outbox").options(url=shop.url, **trace_headers())
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert shop.rows(HEADERS) == [(["traceparent"], [context], 5)]


def test_the_task_that_submits_a_job_gives_it_a_context(shop: Shop, spark: SparkSession, context: str) -> None:
    properties = {settings.TRACEPARENT: TASKS["traceparent"], settings.TRACESTATE: TASKS["tracestate"]}
    for name, value in properties.items():
        spark.conf.set(name, value)
    try:
        register(spark)
    finally:
        for name in properties:
            spark.conf.unset(name)
    frame = spark.range(1).selectExpr("'t' AS topic", "'k' AS key", "'v' AS value")
    try:
        shop.write(frame)
        assert shop.rows(HEADERS) == [([*TASKS], [*TASKS.values()], 1)]
        shop.connection.execute("TRUNCATE outbox")
        shop.write(frame, **trace_headers())  # without the task's tracestate
        assert shop.rows(HEADERS) == [(["traceparent"], [context], 1)]
    finally:
        register(spark)
