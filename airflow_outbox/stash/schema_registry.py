"""Records that are serialised for a schema registry where they are stashed. The harvester passes their bytes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_outbox.values.records import Headers, OutboxRecord

if TYPE_CHECKING:
    from confluent_kafka.serialization import SerializationContext

    Serializer = Callable[[Any, SerializationContext], bytes | None]


def serialized_record(
    topic: str,
    key: Any,
    value: Any,
    *,
    value_serializer: Serializer,
    key_serializer: Serializer | None = None,
    headers: Headers = (),
    partition: int | None = None,
) -> OutboxRecord:
    """Return a record whose value, and key if it has a serializer, is serialised by confluent-kafka.

    The serializers are confluent-kafka's own: `AvroSerializer`, `JSONSerializer`, `ProtobufSerializer`, or any callable
    like them. They register or look up the schema once and remember its id. As they are configured, they write the id
    before the value, or into the headers `__value_schema_id` and `__key_schema_id`. A value of None stays a tombstone.

    The outbox needs columns of bytes: `init --value-type bytea`; `--key-type bytea` for a serialised key;
    `--header-type bytea` for ids in headers.

    Raises what the serializers raise: confluent-kafka's SerializationError and SchemaRegistryError.
    """
    # Only here: who stashes without a registry needs no client of Kafka's.
    from confluent_kafka.serialization import MessageField, SerializationContext

    pairs: Any = OutboxRecord(topic, "", None, headers).header_pairs()
    if key_serializer is not None:
        key = key_serializer(key, SerializationContext(topic, MessageField.KEY, pairs))
    payload = value_serializer(value, SerializationContext(topic, MessageField.VALUE, pairs))
    return OutboxRecord(topic, key, payload, pairs, partition)
