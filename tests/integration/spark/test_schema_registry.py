"""Columns with a schema's id, made by Spark and read by confluent-kafka's deserializers.

The registry is a small server: see `tests/support/schema_registry.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    dual_schema_id_deserializer,
)
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from integration.spark.shop import Shop
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support.schema_registry import schema_registry

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.spark import with_schema_id

JSON = json.dumps({"title": "Order", "type": "object", "properties": {"number": {"type": "integer"}}})
HEADERS = "array<struct<key:string,value:binary>>"
DUAL = {"schema.id.deserializer": dual_schema_id_deserializer}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "schema-registry.md"


def example(name: str) -> Callable[..., DataFrame]:
    """The function of this name on the page."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    block = next(block for block in blocks if f"def {name}(" in block)
    exec(compile(block, str(PAGE), "exec", dont_inherit=True), namespace)
    function: Callable[..., DataFrame] = namespace[name]
    return function


@pytest.mark.parametrize("in_headers", [False, True])
def test_json_with_an_id(shop: Shop, orders: DataFrame, in_headers: bool) -> None:
    shop.connection.execute("DROP SCHEMA public_outbox_staging, public CASCADE; CREATE SCHEMA public")
    init_outbox(shop.connection, OutboxName.parse("outbox"), value_type="bytea", header_type="bytea")
    with schema_registry() as (url, _):
        client = SchemaRegistryClient({"url": url})
        schema = client.register_schema_full_response("orders-value", Schema(JSON, "JSON"))
        payload = F.encode(F.to_json(F.struct("number")), "UTF-8")
        framed = {"value": with_schema_id(payload, schema.schema_id), "headers": F.array().cast(HEADERS)}
        made = example("with_ids_in_headers")(orders, schema.guid) if in_headers else orders.withColumns(framed)
        frame = made.where("number < 3").withColumn("value", F.when(F.col("number") != 1, F.col("value")))
        shop.write(frame, orderBy="number")
        reader = JSONDeserializer(None, schema_registry_client=client, conf=DUAL)
        rows = shop.rows("SELECT kafka_value, kafka_header_keys, kafka_header_values FROM outbox ORDER BY id")
        read = [
            reader(value, SerializationContext("orders", MessageField.VALUE, list(zip(names, values, strict=True))))
            for value, names, values in rows
        ]
    assert read == [{"number": 0}, None, {"number": 2}]
