"""Configurations as people publish them: each becomes a trigger, or what can't be translated is named.

They are the options and values of connectors that were found in public repositories, without what says where a database
is. Names of companies, and of their tables, are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from psycopg import sql

from airflow_outbox.debezium.connector import Connector, read_connector
from airflow_outbox.debezium.finding import DebeziumFinding, DebeziumSeverity
from airflow_outbox.debezium.rendering import render
from airflow_outbox.debezium.table import SourceColumn, SourceTable
from airflow_outbox.debezium.topic_pattern import TopicPattern
from airflow_outbox.postgres.columns import Column

POSTGRES = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "topic.prefix": "app",
    "table.include.list": "public.outbox",
}
STRINGS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}
JSON = "org.apache.kafka.connect.json.JsonConverter"
VALUE_AS_JSON = {**STRINGS, "value.converter": JSON, "value.converter.schemas.enable": "false"}
BOTH_AS_JSON = {**VALUE_AS_JSON, "key.converter": JSON, "key.converter.schemas.enable": "false"}
USUAL = {"id": "uuid", "aggregatetype": "text", "aggregateid": "text", "type": "text", "payload": "jsonb"}
SNAKE = {"id": "uuid", "aggregate_type": "text", "aggregate_id": "text", "event_type": "text", "payload": "jsonb"}


@dataclass(frozen=True, slots=True)
class Published:
    """A connector: its router's options, its other settings, the columns of its table, and what becomes of it.

    `topics` are pairs of what a row is routed by, and its topic. Without any, `refused` has a part of each text that
    refuses something. `said` has parts of what is said besides.
    """

    name: str
    options: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=lambda: USUAL)
    topics: Sequence[tuple[str, str]] = ()
    refused: Sequence[str] = ()
    said: Sequence[str] = ()
    value_type: str = "text"
    table: str = "public.outbox"

    def connector(self) -> dict[str, str]:
        router = {f"transforms.outbox.{name}": value for name, value in self.options.items()}
        kind = {"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter"}
        return {**POSTGRES, **kind, **router, **self.settings}


PREDICATE = {
    "predicates": "isOutbox",
    "predicates.isOutbox.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
}
CONFIGURATIONS = (
    Published(
        "the type as a header",
        {"table.fields.additional.placement": "type:header:eventType"},
        {**BOTH_AS_JSON, "tombstones.on.delete": "false", "database.server.name": "dbserver1"},
        topics=[("order", "outbox.event.order")],
        said=["publication.autocreate.mode", "heartbeat.interval.ms", "extended.headers.enabled"],
    ),
    Published(
        "bytes with the headers of CloudEvents",
        {
            "table.field.event.key": "message_key",
            "route.by.field": "topic",
            "route.topic.replacement": "${routedByValue}",
            "table.fields.additional.placement": "id:header:ce_id,timestamp:header:ce_time,event_type:header:ce_type,"
            "source:header:ce_source,content_type:header:content-type",
        },
        {**STRINGS, "value.converter": "io.debezium.converters.ByteBufferConverter"},
        {"id": "uuid", "message_key": "character varying", "topic": "text", "timestamp": "timestamp with time zone",
         "event_type": "text", "source": "text", "content_type": "text", "payload": "bytea"},
        topics=[("accounting", "accounting")],
        value_type="bytea",
    ),
    Published(
        "a column with the destination",
        {
            "table.field.event.id": "id",
            "table.field.event.key": "aggregate_id",
            "table.field.event.type": "event_type",
            "table.field.event.payload": "payload",
            "route.by.field": "destination",
            "route.topic.replacement": "${routedByValue}",
        },
        {**VALUE_AS_JSON, "snapshot.mode": "initial", "publication.name": "outbox_pub"},
        {**SNAKE, "destination": "text"},
        topics=[("users", "users")],
    ),
    Published(
        "a document store's table, with options that no router has",
        {
            "table.field.event.key": "mt_dotnet_type",
            "table.field.event.payload": "data",
            "route.by.id": "Id",
            "route.by.field": "mt_dotnet_type",
            "table.fields.additional.placement": "mt_dotnet_type:header:eventType",
            "debezium.expand.json.payload": "true",
        },
        {**STRINGS, "internal.key.converter": JSON},
        {"id": "uuid", "data": "jsonb", "mt_dotnet_type": "character varying"},
        topics=[("Shop.Paid", "outbox.event.Shop.Paid")],
        said=["no option route.by.id", "no option debezium.expand.json.payload"],
    ),
    Published(
        "one key a row",
        {
            "table.field.event.key": "id",
            "route.by.field": "topic",
            "topic.property.name": "topic",
            "route.topic.replacement": "${routedByValue}",
        },
        BOTH_AS_JSON,
        {**SNAKE, "topic": "text"},
        topics=[("a", "a")],
        said=["no option topic.property.name"],
    ),
    Published(
        "the converters are the worker's",
        {
            "route.by.field": "topic_name",
            "route.topic.replacement": "${routedByValue}",
            "table.field.event.id": "event_id",
            "table.field.event.key": "message_key",
        },
        {"publication.autocreate.mode": "filtered", "slot.name": "core_outbox_slot"},
        refused=["key.converter: the connector names none", "value.converter: the connector names none"],
    ),
    Published(
        "an expanded envelope as a string",
        {
            "route.topic.replacement": "orders",
            "table.fields.additional.placement": "type:envelope:type",
            "table.expand.json.payload": "true",
        },
        {**STRINGS, "heartbeat.action.query": "INSERT INTO beats DEFAULT VALUES", "heartbeat.interval.ms": "300000"},
        refused=["columns in the envelope is translated for the JsonConverter only"],
    ),
    Published(
        "an envelope as JSON, and an option misspelt",
        {"table.fields.additional.placement": "type:envelope:type"},
        {**VALUE_AS_JSON, "tombstone.on.delete": "false"},
        topics=[("order", "outbox.event.order")],
        said=["tombstone.on.delete is not known here"],
    ),
    Published(
        "an envelope as JSON with its schema",
        {
            "table.fields.additional.placement": "type:envelope:eventType",
            "route.topic.replacement": "events.${routedByValue}",
        },
        {**STRINGS, "value.converter": JSON},
        topics=[("order", "events.order")],
        said=["the name of the value's schema"],
    ),
    Published(
        "a registry's JSON",
        {"table.fields.additional.placement": "type:envelope:type"},
        {
            "key.converter": "io.apicurio.registry.utils.converter.ExtJsonConverter",
            "value.converter": "io.apicurio.registry.utils.converter.ExtJsonConverter",
            "value.converter.apicurio.registry.auto-register": "true",
        },
        refused=["key.converter: io.apicurio", "value.converter: io.apicurio"],
    ),
    Published(
        "a registry's Avro, and a time of its own",
        {
            "table.field.event.key": "aggregate_id",
            "table.field.event.timestamp": "created_at",
            "route.by.field": "aggregate_type",
            "route.topic.replacement": "signature.events",
        },
        {**STRINGS, "value.converter": "io.confluent.connect.avro.AvroConverter", "snapshot.mode": "never"},
        SNAKE,
        refused=["asks a schema registry for each record"],
        said=["table.field.event.timestamp: records have the time at which they are published"],
    ),
    Published(
        "all in one topic, expanded",
        {
            "table.field.event.key": "aggregate_id",
            "table.fields.additional.placement": "event_type:envelope:event_type",
            "table.expand.json.payload": "true",
            "route.by.field": "aggregate_type",
            "route.topic.regex": ".*",
            "route.topic.replacement": "app.outbox_events",
        },
        VALUE_AS_JSON,
        SNAKE,
        topics=[("order", "app.outbox_events"), ("customer", "app.outbox_events")],
    ),
    Published(
        "bytes in partitions of the application's choice",
        {
            "table.field.event.id": "event_id",
            "table.field.event.key": "message_key",
            "table.field.event.timestamp": "created_at",
            "route.by.field": "topic",
            "route.topic.replacement": "${routedByValue}",
            "table.fields.additional.placement": "kafka_partition_id:partition,headers_json:header:headers_json,"
            "payload_type:header:eventType",
        },
        {**BOTH_AS_JSON, "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter"},
        {"event_id": "uuid", "message_key": "text", "topic": "text", "kafka_partition_id": "integer",
         "headers_json": "jsonb", "payload_type": "text", "payload": "bytea"},
        topics=[("a.b", "a.b")],
        said=["table.field.event.timestamp"],
        value_type="bytea",
    ),
    Published(
        "a predicate that the table passes",
        {
            "route.by.field": "aggregate_type",
            "route.topic.replacement": "app.outbox.${routedByValue}",
            "table.field.event.key": "aggregate_id",
            "predicate": "isOutbox",
        },
        {**STRINGS, **PREDICATE, "predicates.isOutbox.pattern": "app\\.app_private\\.outbox",
         "table.include.list": "app_private.outbox"},
        SNAKE,
        topics=[("order", "app.outbox.order")],
        table="app_private.outbox",
    ),
    Published(
        "a predicate that leaves a table of heartbeats out",
        {"predicate": "isOutbox", "table.expand.json.payload": "true"},
        {**VALUE_AS_JSON, **PREDICATE, "predicates.isOutbox.pattern": ".*outbox",
         "table.include.list": "public.outbox,public.debezium_heartbeat"},
        topics=[("order", "outbox.event.order")],
        said=["does not let the rows of public.debezium_heartbeat pass, so that they are not stashed"],
    ),
    Published(
        "a predicate that means everything but heartbeats",
        {"predicate": "isOutbox", "negate": "true"},
        {**STRINGS, **PREDICATE, "predicates.isOutbox.pattern": "^__debezium-heartbeat[.].*$"},
        topics=[("order", "outbox.event.order")],
    ),
    Published(
        "an event store",
        {
            "table.field.event.id": "event_id",
            "table.field.event.key": "partition_key",
            "table.field.event.type": "event_name",
            "table.field.event.payload": "event_envelope",
            "route.by.field": "topic_route",
            "route.topic.regex": "(.*)",
            "route.topic.replacement": "$1.events.v1",
            "table.expand.json.payload": "false",
            "table.op.invalid.behavior": "fatal",
            "route.tombstone.on.empty.payload": "false",
            "table.fields.additional.placement": "event_id:header:id,event_name:header:type,"
            "stream_revision:header:streamRevision",
        },
        {**STRINGS, "exactly.once.support": "required", "transaction.boundary": "poll", "lsn.flush.mode": "connector",
         "offset.mismatch.strategy": "trust_offset", "slot.failover": "true"},
        {"event_id": "uuid", "partition_key": "text", "event_name": "text", "event_envelope": "text",
         "topic_route": "text", "stream_revision": "bigint"},
        topics=[("billing", "billing.events.v1")],
        said=["table.op.invalid.behavior"],
    ),
    Published(
        "a pattern with a class, and only some columns read",
        {
            "table.op.invalid.behavior": "fatal",
            "table.field.event.key": "partitionKey",
            "table.field.event.payload": "envelope",
            "route.by.field": "topic",
            "route.topic.regex": "app\\.domain\\.([a-z][a-z0-9-]*)\\.v1",
            "route.topic.replacement": "prod.$1.events.v1",
            "table.expand.json.payload": "true",
            "table.field.additional.missing": "error",
            "table.json.payload.null.behavior": "optional_bytes",
        },
        {**VALUE_AS_JSON, "skipped.operations": "u,d,t", "topic.creation.enable": "false",
         "column.include.list": "public.outbox.id,public.outbox.topic"},
        refused=["column.include.list changes what is read of the table"],
    ),
    Published(
        "headers as a column, and numbers as text",
        {
            "table.field.event.id": "event_uuid",
            "table.field.event.key": "partition_key",
            "table.fields.additional.placement": "topic:header,headers:header,amount:header",
            "route.by.field": "topic",
            "route.topic.regex": "(.*)",
            "route.topic.replacement": "$1",
        },
        {**VALUE_AS_JSON, "decimal.handling.mode": "string", "binary.handling.mode": "base64",
         "event.processing.failure.handling.mode": "skip", "snapshot.locking.mode": "none"},
        {"event_uuid": "uuid", "partition_key": "text", "topic": "text", "headers": "jsonb", "payload": "jsonb",
         "amount": "numeric"},
        topics=[("wallet", "wallet")],
    ),
    Published(
        "a suffix in the name",
        {
            "table.field.event.key": "aggregate_id",
            "route.by.field": "event_type",
            "route.topic.regex": "(.*)_outbox",
            "route.topic.replacement": "$1_events",
        },
        STRINGS,
        SNAKE,
        topics=[("order_outbox", "order_events"), ("order", "order")],
    ),
    Published(
        "a group that the pattern lacks",
        {"route.topic.regex": ".*", "route.topic.pattern": "events.order.${routedByValue:type}"},
        VALUE_AS_JSON,
        refused=["the replacement 'outbox.event.${routedByValue}' names a group"],
        said=["no option route.topic.pattern"],
    ),
    Published(
        "a second transform",
        {"table.expand.json.payload": "true"},
        {**VALUE_AS_JSON, "transforms": "outbox,insertSource",
         "transforms.insertSource.type": "org.apache.kafka.connect.transforms.InsertField$Value"},
        refused=["the transform insertSource (org.apache.kafka.connect.transforms.InsertField$Value) is not"],
    ),
    Published(
        "MySQL",
        {"table.field.event.key": "aggregate_id", "route.by.field": "aggregate_type"},
        {**STRINGS, "connector.class": "io.debezium.connector.mysql.MySqlConnector", "database.server.id": "10001",
         "schema.history.internal.kafka.topic": "history"},
        SNAKE,
        refused=["MySqlConnector is not Debezium's connector for Postgres"],
    ),
    Published(
        "no router, but the table's own name",
        {},
        {**STRINGS, "transforms": "unwrap,extractTopicName",
         "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState"},
        refused=["no transform of the type io.debezium.transforms.outbox.EventRouter"],
    ),
    Published(
        "MongoDB's router",
        {},
        {"connector.class": "io.debezium.connector.mongodb.MongoDbConnector",
         "transforms.outbox.type": "io.debezium.connector.mongodb.transforms.outbox.MongoEventRouter"},
        refused=["MongoDbConnector is not Debezium's connector for Postgres", "no transform of the type"],
    ),
)  # fmt: skip


def topic_of(pattern: TopicPattern, value: str) -> str:
    if pattern.regex is None:
        return "".join(value if part is None else part for part in pattern.parts)
    return re.sub(pattern.regex, pattern.replacement, value)


def translated(published: Published) -> tuple[Connector | None, list[DebeziumFinding], bool]:
    """The connector, what is said, and whether a trigger comes of it."""
    connector, findings = read_connector(published.connector())
    if connector is None:
        return None, findings, False
    columns = {
        name: SourceColumn(name, kind, is_enum=False, is_nullable=False, max_length=None, precision=None, default=None)
        for name, kind in published.columns.items()
    }
    outbox = {
        "kafka_key": Column("text", None),
        "kafka_value": Column(published.value_type, None),
        "kafka_header_values": Column("text[]", None),
        "kafka_partition": Column("integer", None),
    }
    schema, table = published.table.split(".")
    function = sql.SQL("f")
    rendered, more = render(
        connector.router,
        SourceTable(schema, table, "r", columns),
        outbox,
        may_lack_key=False,
        escape=function,
        expand=function,
        expand_with_schema=function,
    )
    return connector, [*findings, *more], rendered is not None


@pytest.mark.parametrize("published", CONFIGURATIONS, ids=lambda published: published.name)
def test_it_is_translated_or_what_is_not_is_named(published: Published) -> None:
    connector, findings, is_rendered = translated(published)
    refused = [finding.text for finding in findings if finding.severity is DebeziumSeverity.REFUSED]
    others = [finding.text for finding in findings if finding.severity is not DebeziumSeverity.REFUSED]
    for part in published.refused:
        assert [text for text in refused if part in text], (part, refused)
    for part in published.said:
        assert [text for text in others if part in text], (part, others)
    if published.refused:
        return
    assert refused == []
    assert connector is not None
    assert is_rendered
    assert connector.tables == [published.table]
    assert [(value, topic_of(connector.router.topic, value)) for value, _ in published.topics] == published.topics


@pytest.mark.parametrize(
    "settings",
    [
        {"debezium.source.connector.class": POSTGRES["connector.class"], "debezium.sink.type": "kafka",
         "debezium.transforms": "outbox", "debezium.format.value": "simplestring"},
        {"debezium.transforms": "outbox", "debezium.sink.type": "redis"},
    ],
)  # fmt: skip
def test_a_debezium_server_is_named(settings: Mapping[str, str]) -> None:
    connector, findings = read_connector(settings)
    assert connector is None
    [text] = [finding.text for finding in findings if finding.severity is DebeziumSeverity.REFUSED]
    assert "Debezium Server" in text
