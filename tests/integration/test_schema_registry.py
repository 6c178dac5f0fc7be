"""Records serialised for a schema registry, by confluent-kafka's own serializers, and read by its deserializers.

The registry is a small server that speaks the REST interface: see `tests/support/schema_registry.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from support.schema_registry import Registry, schema_registry

from airflow_outbox import serialized_record, stash
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

FIELDS = [{"name": "state", "type": "string"}]
# A short value without an id before it is too short for the Avro deserializer.
AVRO = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})
JSON = json.dumps({"title": "Order", "type": "object", "properties": {"state": {"type": "string"}}})
IN_HEADERS = {"schema.id.serializer": header_schema_id_serializer}
Pair = tuple[Any, Any, Any]


def avro(client: SchemaRegistryClient, conf: dict[str, Any]) -> Pair:
    reader = AvroDeserializer(client, conf={"schema.id.deserializer": dual_schema_id_deserializer})
    return AvroSerializer(client, AVRO, conf=conf), reader, {"state": "paid in full"}


def json_schema(client: SchemaRegistryClient, conf: dict[str, Any]) -> Pair:
    reader_conf = {"schema.id.deserializer": dual_schema_id_deserializer}
    reader = JSONDeserializer(None, schema_registry_client=client, conf=reader_conf)
    return JSONSerializer(JSON, client, conf=conf), reader, {"state": "paid in full"}


def protobuf(client: SchemaRegistryClient, conf: dict[str, Any]) -> Pair:
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="state", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    pool = DescriptorPool()
    pool.Add(file)
    kind = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    reader_conf = {"schema.id.deserializer": dual_schema_id_deserializer, "use.deprecated.format": False}
    reader = ProtobufDeserializer(kind, reader_conf, client)
    return ProtobufSerializer(kind, client, conf | {"use.deprecated.format": False}), reader, kind(state="paid in full")


@pytest.fixture
def registry() -> Iterator[tuple[str, Registry]]:
    with schema_registry() as served:
        yield served


@pytest.mark.parametrize("conf", [{}, IN_HEADERS], ids=["before the value", "in headers"])
@pytest.mark.parametrize("form", [avro, json_schema, protobuf])
def test_a_consumer_reads_what_was_stashed(
    form: Callable[..., Pair], conf: dict[str, Any], registry: tuple[str, Registry], connection: psycopg.Connection[Any]
) -> None:
    init_outbox(connection, OutboxName.parse("outbox"), key_type="bytea", value_type="bytea", header_type="bytea")
    url, server = registry
    serializer, reader, value = form(SchemaRegistryClient({"url": url}), conf)
    records = [
        serialized_record(
            "orders",
            value,
            given,
            key_serializer=serializer,
            value_serializer=serializer,
            headers={"own": "1"},
            partition=2,
        )
        for given in (value, value, None)
    ]
    asked = len(server.requests)
    stash(connection, records, autocommit="allow")
    columns = "kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition"
    rows = connection.execute(f"SELECT {columns} FROM outbox ORDER BY id").fetchall()  # type: ignore[call-overload]
    for (key, stored, names, values, partition), given in zip(rows, (value, value, None), strict=True):
        headers = list(zip(names, values, strict=True))
        assert (headers[0], partition) == (("own", b"1"), 2)
        assert ("__value_schema_id" in names) == (bool(conf) and given is not None)
        assert reader(key, SerializationContext("orders", MessageField.KEY, headers)) == value
        assert reader(stored, SerializationContext("orders", MessageField.VALUE, headers)) == given
    assert server.subjects.keys() == {"orders-key", "orders-value"}
    written = [request for request in server.requests[:asked] if request.startswith("POST")]
    assert len(written) == len(set(written))  # once a schema, and not once a record


def test_what_the_schema_refuses_is_not_stashed(registry: tuple[str, Registry]) -> None:
    serializer, _, _ = avro(SchemaRegistryClient({"url": registry[0]}), {})
    with pytest.raises((SerializationError, ValueError, TypeError)):
        serialized_record("orders", "17", {"state": 1}, value_serializer=serializer)
