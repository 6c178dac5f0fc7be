"""What a connector's configuration becomes, and what is said of that which does not."""

from __future__ import annotations

import pytest

from airflow_outbox.debezium.connector import Connector, read_connector
from airflow_outbox.debezium.converters import Converter, Form
from airflow_outbox.debezium.finding import DebeziumFinding, DebeziumSeverity
from airflow_outbox.debezium.router import AdditionalField, Placement
from airflow_outbox.debezium.topic_pattern import TopicPattern

STRING = "org.apache.kafka.connect.storage.StringConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
PLAIN = {
    "name": "shop",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.hostname": "db",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "table.include.list": "public.outbox",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "key.converter": STRING,
    "value.converter": STRING,
    "tombstones.on.delete": "false",
    "heartbeat.interval.ms": "1000",
    "extended.headers.enabled": "false",
}


def read(**settings: str) -> tuple[Connector, list[DebeziumFinding]]:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    connector, findings = read_connector({**PLAIN, **given})
    assert connector is not None
    return connector, findings


def test_a_plain_one_says_nothing() -> None:
    connector, findings = read()
    assert findings == []
    assert connector.tables == ["public.outbox"]
    assert (connector.publication, connector.slot) == ("dbz_publication", "debezium")
    router = connector.router
    assert (router.id_column, router.key_column, router.route_column) == ("id", "aggregateid", "aggregatetype")
    assert router.topic == TopicPattern(["outbox.event.", None])
    assert router.key == router.value == router.header == Converter(Form.TEXT)


def test_options() -> None:
    connector, findings = read(
        transforms__outbox__table__field__event__id="event_id",
        transforms__outbox__table__fields__additional__placement="type:header:eventType, p:partition,x:envelope",
        transforms__outbox__table__fields__additional__error__on__missing="false",
        transforms__outbox__route__tombstone__on__empty__payload="true",
        value__converter=JSON,
        value__converter__schemas__enable="false",
        slot__name="shop",
        publication__name="shop",
        table__include__list="public\\.outbox,other.outbox",
    )
    assert findings == []
    assert connector.tables == ["public.outbox", "other.outbox"]
    assert (connector.publication, connector.slot) == ("shop", "shop")
    router = connector.router
    assert router.id_column == "event_id"
    assert router.additional == [
        AdditionalField("type", Placement.HEADER, "eventType"),
        AdditionalField("p", Placement.PARTITION, "p"),
        AdditionalField("x", Placement.ENVELOPE, "x"),
    ]
    assert router.ignores_missing
    assert router.tombstones
    assert router.value == Converter(Form.JSON)
    assert read(value__converter=JSON)[0].router.value == Converter(Form.JSON, has_schema=True)


@pytest.mark.parametrize(
    ("name", "value", "severity", "says"),
    [
        (
            "value.converter",
            "io.confluent.connect.avro.AvroConverter",
            DebeziumSeverity.REFUSED,
            "asks a schema registry",
        ),
        (
            "value.converter",
            "io.apicurio.registry.utils.converter.AvroConverter",
            DebeziumSeverity.REFUSED,
            "schema registry",
        ),
        ("value.converter", "io.debezium.converters.CloudEventsConverter", DebeziumSeverity.REFUSED, "cloud-events.md"),
        ("key.converter", "com.example.Converter", DebeziumSeverity.REFUSED, "not translated"),
        ("key.converter", "", DebeziumSeverity.REFUSED, "--worker"),
        ("header.converter", "io.debezium.converters.BinaryDataConverter", DebeziumSeverity.REFUSED, "not translated"),
        (
            "connector.class",
            "io.debezium.connector.mysql.MySqlConnector",
            DebeziumSeverity.REFUSED,
            "not Debezium's connector",
        ),
        ("transforms", "outbox,other", DebeziumSeverity.REFUSED, "the transform other"),
        (
            "transforms.outbox.predicate",
            "isOrder",
            DebeziumSeverity.REFUSED,
            "predicate isOrder, so that some rows may not pass it",
        ),
        ("transforms.outbox.some.other.option", "x", DebeziumSeverity.NOTE, "no option some.other.option"),
        (
            "transforms.outbox.table.json.payload.empty.array.behavior",
            "optional_string",
            DebeziumSeverity.REFUSED,
            "left out",
        ),
        ("transforms.outbox.route.topic.regex", "(.*?)", DebeziumSeverity.REFUSED, "generate a column"),
        ("transforms.outbox.table.fields.additional.placement", "type:body", DebeziumSeverity.REFUSED, "'type:body'"),
        (
            "transforms.outbox.route.tombstone.on.empty.payload",
            "maybe",
            DebeziumSeverity.REFUSED,
            "neither true nor false",
        ),
        ("transforms.outbox.table.json.payload.null.behavior", "keep", DebeziumSeverity.REFUSED, "none of ignore"),
        ("transforms.outbox.table.field.event.timestamp", "at", DebeziumSeverity.DIFFERS, "column at"),
        ("transforms.outbox.table.field.event.schema.version", "v", DebeziumSeverity.NOTE, "schema"),
        ("transforms.outbox.table.op.invalid.behavior", "fatal", DebeziumSeverity.NOTE, "update"),
        ("transforms.outbox.tracing.operation.name", "x", DebeziumSeverity.NOTE, "spans"),
        ("table.include.list", "public\\.outbox_.*", DebeziumSeverity.REFUSED, "Give --table"),
        ("column.mask.with.10.chars", "public.outbox.payload", DebeziumSeverity.REFUSED, "changes what is read"),
        ("extended.headers.enabled", "true", DebeziumSeverity.DIFFERS, "__debezium.context.*"),
        ("converters", "isbn", DebeziumSeverity.REFUSED, "custom converters"),
        ("skipped.operations", "c,u", DebeziumSeverity.REFUSED, "inserts are skipped"),
        ("field.name.adjustment.mode", "avro", DebeziumSeverity.REFUSED, "not adjusted"),
        ("provide.transaction.metadata", "true", DebeziumSeverity.DIFFERS, "transaction_headers"),
        ("topic.creation.default.partitions", "3", DebeziumSeverity.DIFFERS, "not made here"),
        ("errors.tolerance", "all", DebeziumSeverity.DIFFERS, "parked"),
        ("plugin.name", "decoderbufs", DebeziumSeverity.NOTE, "no publication"),
        ("publication.autocreate.mode", "filtered", DebeziumSeverity.NOTE, "may put the table back"),
        ("heartbeat.interval.ms", "0", DebeziumSeverity.NOTE, "does not confirm its last rows"),
        ("surprising.setting", "x", DebeziumSeverity.NOTE, "surprising.setting is not known"),
    ],
)
def test_what_is_said(name: str, value: str, severity: DebeziumSeverity, says: str) -> None:
    _, findings = read_connector({**PLAIN, name: value})
    [found] = [each for each in findings if says in each.text]
    assert found.severity is severity


def test_without_a_router() -> None:
    for settings in ({}, {"transforms": "a", "transforms.a.type": "org.apache.kafka.connect.transforms.RegexRouter"}):
        connector, findings = read_connector(settings)
        assert connector is None
        assert "no transform" in findings[0].text


def test_a_named_table_replaces_the_list() -> None:
    connector, findings = read_connector({**PLAIN, "table.include.list": "public.*"}, table="shop.outbox")
    assert connector is not None
    assert (connector.tables, findings) == (["shop.outbox"], [])


PREDICATE = {
    "topic.prefix": "shop",
    "transforms.outbox.predicate": "isOutbox",
    "predicates.isOutbox.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
    "predicates.isOutbox.pattern": "shop\\.public\\.outbox.*",
}


@pytest.mark.parametrize("listed", ["public.outbox", '"public"."outbox_7"', "outbox"])
def test_a_predicate_that_the_table_passes(listed: str) -> None:
    connector, findings = read_connector({**PLAIN, **PREDICATE, "table.include.list": listed})
    assert connector is not None
    assert (connector.tables, findings) == ([listed], [])
    assert {name: value for name, value in PREDICATE.items() if name not in connector.settings} == {}


def test_a_predicate_leaves_tables_out() -> None:
    connector, [finding] = read_connector({**PLAIN, **PREDICATE, "table.include.list": "public.outbox,public.beats"})
    assert connector is not None
    assert connector.tables == ["public.outbox"]
    assert finding.severity is DebeziumSeverity.NOTE
    assert "isOutbox does not let the rows of public.beats pass" in finding.text
    connector, [finding] = read_connector({**PLAIN, **PREDICATE, "transforms.outbox.negate": "true"})
    assert connector is not None
    assert connector.tables == []
    assert finding.severity is DebeziumSeverity.REFUSED
    assert "Name the outbox table" in finding.text


def test_a_predicate_reads_a_topics_name_as_kafka_allows_it() -> None:
    settings = {**PLAIN, **PREDICATE, "predicates.isOutbox.pattern": "shop\\.public\\.outbox_7", "topic.prefix": "shop"}
    connector, findings = read_connector({**settings, "table.include.list": "public.outbox$7"})
    assert connector is not None
    assert (connector.tables, findings) == (["public.outbox$7"], [])


def test_a_predicate_asks_for_the_schema_of_a_table_that_is_named_beside_it() -> None:
    _, [finding] = read_connector({**PLAIN, **PREDICATE}, table="outbox")
    assert finding.severity is DebeziumSeverity.REFUSED
    assert "Give schema.table" in finding.text
    _, findings = read_connector({**PLAIN, **PREDICATE}, table="public.outbox")
    assert findings == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"predicates.isOutbox.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey"}, "each record"),
        ({"predicates.isOutbox.pattern": "(?<a>b"}, "can't be read"),
        ({"predicates.isOutbox.pattern": "[a-z&&[^x]]+"}, "a class of classes"),
        ({"predicates.isOutbox.pattern": "shop[.[-]]outbox"}, "a class of classes"),
        ({"topic.delimiter": "-"}, "begin with topic.prefix"),
    ],
)
def test_a_predicate_that_is_not_translated(settings: dict[str, str], says: str) -> None:
    _, [finding] = read_connector({**PLAIN, **PREDICATE, **settings})
    assert finding.severity is DebeziumSeverity.REFUSED
    assert says in finding.text
    assert "leave the predicate out" in finding.text


def test_the_version_of_an_envelopes_schema_is_refused() -> None:
    settings = {
        "topic.prefix": "shop",
        "value.converter": JSON,
        "transforms.outbox.table.fields.additional.placement": "type:envelope",
        "transforms.outbox.table.field.event.schema.version": "v",
    }
    _, [finding] = read_connector({**PLAIN, **settings})
    assert finding.severity is DebeziumSeverity.REFUSED
    assert "has no version here" in finding.text
