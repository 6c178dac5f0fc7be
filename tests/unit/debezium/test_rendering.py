"""What would fail the application's transaction, or become something else than with Debezium, is refused before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from psycopg import sql

from airflow_outbox.debezium.defaults import Default, default_of
from airflow_outbox.debezium.finding import DebeziumFinding, DebeziumSeverity
from airflow_outbox.debezium.rendering import Rendered, render
from airflow_outbox.debezium.router import Router, translated
from airflow_outbox.debezium.table import SourceColumn, SourceTable
from airflow_outbox.postgres.columns import Column

STRING = "org.apache.kafka.connect.storage.StringConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
SQL = sql.SQL("expand")
COLUMN = SourceColumn("x", "text", is_enum=False, is_nullable=False, max_length=None, precision=None, default=None)
COLUMNS = {
    name: replace(COLUMN, name=name, type=kind)
    for name, kind in {
        "id": "uuid",
        "aggregatetype": "text",
        "aggregateid": "text",
        "payload": "jsonb",
        "part": "integer",
        "small": "smallint",
        "at": "timestamp without time zone",
        "price": "numeric",
        "bin": "bytea",
    }.items()
}
OUTBOX = {
    "kafka_key": Column("text", None),
    "kafka_value": Column("text", None),
    "kafka_header_values": Column("text[]", None),
    "kafka_partition": Column("integer", None),
}


def router(settings: Mapping[str, str]) -> Router:
    plain = {
        "transforms": "o",
        "transforms.o.type": "io.debezium.transforms.outbox.EventRouter",
        "key.converter": STRING,
        "value.converter": STRING,
    }
    found, findings = translated({**plain, **settings})
    assert found is not None
    assert findings == []
    return found


def rendered(
    settings: Mapping[str, str],
    columns: Mapping[str, SourceColumn] = COLUMNS,
    outbox: Mapping[str, Column] = OUTBOX,
    *,
    may_lack_key: bool = False,
) -> tuple[Rendered | None, list[DebeziumFinding]]:
    table = SourceTable("public", "events", "r", columns)
    return render(
        router(settings), table, outbox, may_lack_key=may_lack_key, escape=SQL, expand=SQL, expand_with_schema=SQL
    )


def without(name: str) -> dict[str, SourceColumn]:
    return {each: column for each, column in COLUMNS.items() if each != name}


def with_price(digits: int, scale: int) -> dict[str, SourceColumn]:
    return {**COLUMNS, "price": replace(COLUMNS["price"], digits=digits, scale=scale)}


def test_nothing_to_say() -> None:
    found, findings = rendered({})
    assert found is not None
    assert findings == []
    assert not found.expands


PLACEMENT = "transforms.o.table.fields.additional.placement"
BIN = {"transforms.o.table.field.event.payload": "bin"}
EXPAND = {"transforms.o.table.expand.json.payload": "true"}


@pytest.mark.parametrize(
    ("settings", "columns", "outbox", "says"),
    [
        ({}, without("payload"), {}, "has no column payload. Give table.field.event.payload"),
        ({}, without("id"), {}, "Give table.field.event.id"),
        ({PLACEMENT: "missing:header"}, COLUMNS, {}, "has no column missing"),
        ({PLACEMENT: "price:header"}, COLUMNS, {}, "column price is numeric without a precision"),
        ({PLACEMENT: "price:header"}, with_price(19, 2), {}, "numeric(19,2), and only numbers of up to 18 digits"),
        ({PLACEMENT: "price:header"}, with_price(3, -2), {}, "numeric(3,-2), and only"),
        (
            {PLACEMENT: "price:header", "decimal.handling.mode": "double"},
            with_price(10, 2),
            {},
            "column price is numeric, which is not translated with decimal.handling.mode=double",
        ),
        ({"transforms.o.route.by.field": "price"}, with_price(10, 2), {}, "and no text"),
        ({PLACEMENT: "at:header", "time.precision.mode": "connect"}, COLUMNS, {}, "time.precision.mode=connect"),
        ({PLACEMENT: "small:partition"}, COLUMNS, {}, "a partition is an integer"),
        ({"transforms.o.route.by.field": "part"}, COLUMNS, {}, "and no text"),
        ({"transforms.o.table.field.event.key": "bin"}, COLUMNS, {}, "StringConverter does not send its bytes"),
        ({"value.converter": BYTES}, COLUMNS, {}, "of which the converter of bytes makes nothing"),
        ({"value.converter": BYTES, **BIN}, COLUMNS, {}, "--value-type bytea"),
        ({PLACEMENT: "part:envelope"}, COLUMNS, {}, "columns in the envelope is translated for the JsonConverter"),
        ({PLACEMENT: "part:envelope", "value.converter": JSON}, COLUMNS, {}, "whose name begins with topic.prefix"),
        (EXPAND, COLUMNS, {}, "table.expand.json.payload is translated for"),
        ({}, COLUMNS, {"kafka_value": Column("character varying", 10000)}, "--value-type text"),
        ({}, COLUMNS, {"kafka_key": Column("character varying", 100)}, "--key-type text"),
        (
            {"key.converter": JSON},
            {**COLUMNS, "aggregateid": replace(COLUMN, name="aggregateid", default="'none'::text")},
            {},
            "Turn schemas.enable off",
        ),
        (
            {},
            {**COLUMNS, "aggregateid": replace(COLUMN, name="aggregateid", is_nullable=True)},
            {},
            "Set \"public\".\"events\".aggregateid NOT NULL, or let",
        ),
    ],
)  # fmt: skip
def test_refused(
    settings: Mapping[str, str], columns: Mapping[str, SourceColumn], outbox: Mapping[str, Column], says: str
) -> None:
    found, findings = rendered(settings, columns, {**OUTBOX, **outbox})
    assert found is None
    [text] = [each.text for each in findings if says in each.text]
    assert all(each.severity is DebeziumSeverity.REFUSED for each in findings), text


def test_what_fits_is_not_refused() -> None:
    short = {**OUTBOX, "kafka_key": Column("character varying", 100)}
    key = {**COLUMNS, "aggregateid": replace(COLUMN, name="aggregateid", max_length=100)}
    assert rendered({}, key, short) != (None, [])
    lacking = {**COLUMNS, "aggregateid": replace(COLUMN, name="aggregateid", is_nullable=True)}
    assert rendered({}, lacking, may_lack_key=True)[1] == []
    assert rendered({PLACEMENT: "missing:header", "transforms.o.table.field.additional.missing": "ignore"})[1] == []
    assert rendered({PLACEMENT: "price:header", "decimal.handling.mode": "string"})[1] == []
    assert rendered({PLACEMENT: "price:header"}, with_price(18, 18))[1] == []


def test_a_null_that_debezium_fills_in() -> None:
    filled = replace(COLUMN, name="payload", is_nullable=True, default="'none'::text")
    found, [finding] = rendered({}, {**COLUMNS, "payload": filled})
    assert found is not None
    assert finding.severity is DebeziumSeverity.DIFFERS
    assert "which Debezium sends where the column is null" in finding.text


def test_a_null_in_a_column_with_a_computed_default() -> None:
    filled = replace(COLUMN, name="payload", is_nullable=True, default="md5('none'::text)")
    found, findings = rendered({}, {**COLUMNS, "payload": filled})
    assert found is not None
    assert findings == []
    assert found.parts["value"].as_string(None).strip() == """coalesce(NEW."payload", '')::text"""


def test_an_envelope_with_a_schema_says_what_its_name_tells() -> None:
    settings = {PLACEMENT: "small:envelope", "value.converter": JSON, "topic.prefix": "shop"}
    found, [finding] = rendered(settings)
    assert found is not None
    assert finding.severity is DebeziumSeverity.DIFFERS
    assert "tells each row's own aggregatetype" in finding.text
    value = found.parts["value"].as_string(None)
    assert '"field":"payload"},{"type":"int16","optional":false,"field":"small"}],"optional":false,"name":' in value
    assert "'shop.public.events.'" in value


@pytest.mark.parametrize(
    ("kind", "default", "found"),
    [
        ("text", None, Default.NONE),
        ("uuid", "gen_random_uuid()", Default.COMPUTED),
        ("timestamp without time zone", "(now() AT TIME ZONE 'utc'::text)", Default.COMPUTED),
        ("timestamp with time zone", "CURRENT_TIMESTAMP", Default.COMPUTED),
        ("date", "((now() AT TIME ZONE 'utc'::text))::date", Default.NONE),
        ("bytea", "gen_random_bytes(4)", Default.NONE),
        ("character varying", "'a(b)'::character varying", Default.LITERAL),
        ("integer", "17", Default.LITERAL),
        ("date", "'2024-01-01'::date", Default.LITERAL),
    ],
)
def test_defaults(kind: str, default: str | None, found: Default) -> None:
    assert default_of(replace(COLUMN, type=kind, default=default)) is found


def test_the_schema_has_a_placeholder_for_a_computed_default() -> None:
    key = replace(COLUMN, name="aggregateid", type="uuid", default="gen_random_uuid()")
    found, findings = rendered({"key.converter": JSON}, {**COLUMNS, "aggregateid": key})
    assert found is not None
    assert findings == []
    assert '"default":"00000000-0000-0000-0000-000000000000"' in found.parts["key"].as_string(None)
