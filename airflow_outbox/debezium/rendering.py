"""The body of the trigger: a router, the table's columns and the outbox's columns as one INSERT."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from airflow_outbox.debezium.column_types import UnknownTypeError, ValueType, type_of
from airflow_outbox.debezium.converters import Converter, Form
from airflow_outbox.debezium.defaults import Default, default_of, placeholder
from airflow_outbox.debezium.finding import DebeziumFinding, differs, refused
from airflow_outbox.debezium.predicate import UNNAMEABLE
from airflow_outbox.debezium.router import AdditionalField, Placement, Router
from airflow_outbox.debezium.table import SourceColumn, SourceTable
from airflow_outbox.postgres.columns import Column
from airflow_outbox.postgres.statements import filled
from airflow_outbox.sql import statement

_UNROUTABLE = ("integer", "smallint", "bigint", "boolean", "bytea", "date", "timestamp without time zone")
_LENGTHS = {"uuid": 36, "smallint": 6, "integer": 11, "bigint": 20, "boolean": 5, "date": 11}
_ENUM_LENGTH = 63
_END = sql.Literal("}")


def part(name: str, /, **parts: sql.Composable) -> sql.Composed:
    """Return a part of a statement, by its name in `debezium_values.sql`, without what is said of it there."""
    lines = statement(f"debezium_values.{name}").splitlines()
    return filled("\n".join(line for line in lines if not line.startswith("-- ")), None, **parts)


@dataclass(frozen=True, slots=True)
class Rendered:
    """The parts of the trigger's body; `expands`: it calls the function that expands JSON."""

    parts: Mapping[str, sql.Composable]
    expands: bool


@dataclass(frozen=True, slots=True)
class _Expression:
    code: sql.Composable
    is_bytes: bool = False
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class _Field:
    """A column of the inserted row, with the type that Debezium reads it as."""

    column: SourceColumn
    type: ValueType
    escape: sql.Composable

    @property
    def code(self) -> sql.Composable:
        column = part("column", name=sql.Identifier(self.column.name))
        if default_of(self.column) is not Default.COMPUTED or not self.column.is_nullable:
            return column
        return part("or_default", column=column, default=sql.Literal(placeholder(self.column).text))

    @property
    def text(self) -> sql.Composable:
        return self._filled(self.type.fragment, self.code)

    def json(self, converter: Converter) -> sql.Composable:
        """JSON as a converter writes it; null where the column is."""
        if self.type.is_decimal and converter.has_numbers:
            return self._filled(self.type.fragment, part("number", column=self.code))
        if not self.type.is_quoted:
            return self.text
        text = self._filled(self.type.json_fragment or self.type.fragment, self.code)
        return part("json_string", text=text, escape=self.escape)

    def _filled(self, fragment: str, column: sql.Composable) -> sql.Composable:
        scale = self.type.scale
        return part(fragment, column=column, scale=sql.Literal(scale), factor=sql.Literal(10**scale))

    @property
    def max_length(self) -> int | None:
        if self.column.max_length is not None:
            return self.column.max_length
        if self.type.max_length is not None:
            return self.type.max_length
        return _ENUM_LENGTH if self.column.is_enum else _LENGTHS.get(self.column.type)

    def schema(self) -> dict[str, Any]:
        return {"type": self.type.schema, "optional": self.column.is_nullable, **self.type.logical}


def render(
    router: Router,
    table: SourceTable,
    outbox: Mapping[str, Column],
    *,
    may_lack_key: bool,
    escape: sql.Composable,
    expand: sql.Composable,
    expand_with_schema: sql.Composable,
) -> tuple[Rendered | None, list[DebeziumFinding]]:
    """Return the trigger's parts, None where something refuses them, and what has to be said of them.

    `outbox` has the outbox's columns. `may_lack_key`: its key may be null. `escape`,
    `expand` and `expand_with_schema` name the functions that write JSON.
    """
    rendering = _Rendering(router, table, outbox, may_lack_key, escape, expand, expand_with_schema)
    parts = rendering.parts()
    return (None if rendering.is_refused else Rendered(parts, router.expands_json)), rendering.findings


@dataclass(slots=True)
class _Rendering:
    router: Router
    table: SourceTable
    outbox: Mapping[str, Column]
    may_lack_key: bool
    escape: sql.Composable
    expand: sql.Composable
    expand_with_schema: sql.Composable
    findings: list[DebeziumFinding] = field(default_factory=list)
    is_refused: bool = False

    def parts(self) -> dict[str, sql.Composable]:
        router = self.router
        key = self._field(router.key_column, "table.field.event.key")
        payload = self._field(router.payload_column, "table.field.event.payload")
        route = self._field(router.route_column, "route.by.field")
        event_id = self._field(router.id_column, "table.field.event.id")
        headers = [("id", event_id)] if event_id else []
        headers += [(each.alias, found) for each, found in self._additional(Placement.HEADER)]
        values = [
            self._as_column(self._converted(found, router.header, is_header=True), "kafka_header_values")
            for _, found in headers
        ]
        partition = self._partition()
        return {
            "topic": self._topic(route) if route else sql.NULL,
            "no_topic": sql.Literal(f"no topic: {router.route_column} is null"),
            "key": self._as_column(self._key(key), "kafka_key") if key else sql.NULL,
            "value": self._as_column(self._value(payload, route), "kafka_value") if payload and route else sql.NULL,
            "header_names": _array([sql.Literal(name) for name, _ in headers]),
            "header_values": _array(values),
            "partition_column": sql.SQL(", kafka_partition" if partition else ""),
            "partition": sql.Composed([sql.SQL(", "), partition]) if partition else sql.SQL(""),
        }

    def _refuse(self, text: str) -> None:
        self.is_refused = True
        self.findings.append(refused(text))

    def _field(self, name: str, option: str) -> _Field | None:
        column = self.table.columns.get(name)
        if column is None:
            self._refuse(f"{self.table.name} has no column {name}. Give {option} the name of one that it has")
            return None
        try:
            found = _Field(column, type_of(column, self.router), self.escape)
        except UnknownTypeError as error:
            self._refuse(f"{option}: {error}")
            return None
        if column.is_nullable and default_of(column) is Default.LITERAL:
            self.findings.append(
                differs(
                    f"column {name} has the default {column.default}, which Debezium sends where the column is null. "
                    "Null is sent here: set it NOT NULL"
                )
            )
        return found

    def _additional(self, placement: Placement) -> list[tuple[AdditionalField, _Field]]:
        found = []
        for each in self.router.additional:
            is_left_out = self.router.ignores_missing and each.column not in self.table.columns
            if each.placement is placement and not is_left_out:
                column = self._field(each.column, "table.fields.additional.placement")
                found += [(each, column)] if column else []
        return found

    def _topic(self, route: _Field) -> sql.Composable:
        if route.column.type in _UNROUTABLE or route.type.is_decimal:
            self._refuse(f"route.by.field: column {route.column.name} is {route.column.type}, and no text")
        pattern = self.router.topic
        if pattern.regex is not None:
            return part(
                "replaced",
                text=route.text,
                regex=sql.Literal(pattern.regex),
                replacement=sql.Literal(pattern.replacement),
            )
        return sql.SQL(" || ").join(
            [route.text if part is None else sql.Literal(part) for part in pattern.parts] or [sql.Literal("")]
        )

    def _key(self, key: _Field) -> _Expression:
        converter = self.router.key
        if key.column.is_nullable and not self.may_lack_key and converter.form is not Form.JSON:
            self._refuse(
                f"column {key.column.name} may be null, and the outbox's key may not: such a row would fail the "
                f"application's transaction. Set {self.table.name}.{key.column.name} NOT NULL, or let the outbox have "
                "records without a key: ALTER TABLE <outbox> ALTER kafka_key DROP NOT NULL"
            )
        return self._converted(key, converter)

    def _value(self, payload: _Field, route: _Field) -> _Expression:
        value = self._enveloped(payload, route) if self.router.envelope else self._plain(payload)
        if not self.router.tombstones:
            return value
        if payload.type.is_bytes:
            code = part("unless_null", column=payload.code, value=value.code)
        else:
            code = part("unless_empty", text=payload.text, value=value.code)
        return _Expression(code, value.is_bytes, value.max_length)

    def _plain(self, payload: _Field) -> _Expression:
        if not self.router.expands_json:
            return self._converted(payload, self.router.value)
        if self.router.value.form is not Form.JSON:
            self._refuse(
                "table.expand.json.payload is translated for the JsonConverter only. Give "
                "value.converter=org.apache.kafka.connect.json.JsonConverter"
            )
        if not self.router.value.has_schema:
            return _Expression(self._expanded(payload))
        plain = self._converted(payload, self.router.value)
        if not _may_be_expanded(payload):
            return plain
        return _Expression(self._part_of_expansion("expanded_with_schema", payload, value=plain.code))

    def _part_of_expansion(self, name: str, payload: _Field, **parts: sql.Composable) -> sql.Composable:
        """A part of the expanded payload with its schema, or what stands for it where nothing is expanded."""
        return part(
            name,
            expand_s=self.expand_with_schema,
            text=payload.text,
            keeps_nulls=sql.Literal(self.router.keeps_nulls),
            name=sql.Literal(payload.column.name),
            **parts,
        )

    def _expanded(self, payload: _Field) -> sql.Composable:
        plain = part("or_null", value=payload.json(self.router.value))
        if not self.router.expands_json or not _may_be_expanded(payload):
            return plain
        if self.router.value.has_schema:
            return self._part_of_expansion("expanded_payload", payload, value=plain)
        keeps_nulls = sql.Literal(self.router.keeps_nulls)
        return part("expanded", expand=self.expand, text=payload.text, keeps_nulls=keeps_nulls, value=plain)

    def _enveloped(self, payload: _Field, route: _Field) -> _Expression:
        converter = self.router.value
        if converter.form is not Form.JSON:
            self._refuse(
                "table.fields.additional.placement with columns in the envelope is translated for the JsonConverter "
                "only. Give value.converter=org.apache.kafka.connect.json.JsonConverter"
            )
        columns = [(each.alias, found) for each, found in self._additional(Placement.ENVELOPE)]
        values = [("payload", self._expanded(payload))]
        values += [(alias, part("or_null", value=found.json(converter))) for alias, found in columns]
        code: list[sql.Composable] = []
        for place, (name, member) in enumerate(values):
            code += [sql.Literal(f"{',' if place else '{'}{_quoted(name)}:"), member]
        code.append(sql.Literal("}"))
        if not converter.has_schema:
            return _Expression(_joined(code))
        schema = [sql.Literal('{"schema":{"type":"struct","fields":['), self._schema_of_payload(payload)]
        others = "".join(f",{self._schema(found)[:-1]},{_as_field(alias)}" for alias, found in columns)
        schema.append(sql.Literal(f',{_as_field("payload")}{others}],"optional":false,"name":'))
        return _Expression(_joined([*schema, self._envelopes_name(route), sql.Literal('},"payload":'), *code, _END]))

    def _schema_of_payload(self, payload: _Field) -> sql.Composable:
        """Its schema, but for the last brace."""
        plain = sql.Literal(self._schema(payload)[:-1])
        if not self.router.expands_json or not _may_be_expanded(payload):
            return plain
        return self._part_of_expansion("expanded_schema", payload, schema=plain)

    def _envelopes_name(self, route: _Field) -> sql.Composable:
        """The name of the value's schema, as JSON. It tells what the row is routed by."""
        if not self.router.topic_prefix:
            self._refuse(
                "columns in the envelope have a schema whose name begins with topic.prefix. Give it, without a "
                "topic.naming.strategy or a topic.delimiter of your own, or turn value.converter.schemas.enable off"
            )
            return sql.NULL
        self.findings.append(
            differs(
                f"the name of the value's schema tells each row's own {route.column.name}. Debezium keeps the name "
                "that the first row since its start has given it. Where a consumer goes by it, give each its own table"
            )
        )
        place = ".".join(UNNAMEABLE.sub("_", each) for each in (self.router.topic_prefix, *self.table.place))
        routed = part("or_null", value=route.text)
        text = _joined([sql.Literal(f"{place}."), routed, sql.Literal(".Value")])
        return part("json_string", text=sql.Composed([sql.SQL("("), text, sql.SQL(")")]), escape=self.escape)

    def _schema(self, found: _Field) -> str:
        """A column's schema as JSON has it."""
        default = default_of(found.column)
        if found.type.schema == "enum" or default is Default.LITERAL:
            self._refuse(
                f"column {found.column.name} is an enumeration or has a default, which JSON's schema tells. Turn "
                "schemas.enable off"
            )
        told = {"default": placeholder(found.column).value} if default is Default.COMPUTED else {}
        return json.dumps({**found.schema(), **told}, separators=(",", ":"))

    def _converted(self, found: _Field, converter: Converter, *, is_header: bool = False) -> _Expression:
        """A column as a converter writes it; null where the converter writes nothing."""
        name = found.column.name
        if converter.form is Form.BYTES:
            if not found.type.is_bytes:
                self._refuse(f"column {name} is {found.column.type}, of which the converter of bytes makes nothing")
            return _Expression(found.code, is_bytes=True)
        if converter.form is Form.TEXT:
            if found.type.is_bytes and not is_header:
                self._refuse(f"column {name} is bytea, and the StringConverter does not send its bytes")
            return _Expression(found.text, max_length=found.max_length)
        plain = part("or_null", value=found.json(converter))
        if not converter.has_schema:
            return _Expression(plain)
        return _Expression(_joined([sql.Literal(f'{{"schema":{self._schema(found)},"payload":'), plain, _END]))

    def _partition(self) -> sql.Composable | None:
        found = self._additional(Placement.PARTITION)
        if not found:
            return None
        each = found[-1][1]  # as the router, which takes the last one
        if each.column.type != "integer":
            self._refuse(f"column {each.column.name} is {each.column.type}: a partition is an integer")
        if "kafka_partition" not in self.outbox:
            self._refuse("the outbox has no column kafka_partition. Make another with `airflow-outbox init`")
        return part("partition", column=each.code)

    def _as_column(self, expression: _Expression, column: str) -> sql.Composable:
        target = self.outbox[column]
        if expression.is_bytes and not target.is_bytes:
            self._refuse(f"{column} is {target.type}, and the record has bytes there. {_remedy(column, 'bytea')}")
        if expression.is_bytes:
            return expression.code
        limit, longest = target.max_length, expression.max_length
        if limit is not None and (longest is None or longest > limit):
            self._refuse(
                f"{column} takes {limit} characters, and the record may have more there: such a row would fail the "
                f"application's transaction. {_remedy(column, 'text')}"
            )
        return part("bytes", value=expression.code) if target.is_bytes else expression.code


def _may_be_expanded(payload: _Field) -> bool:
    """Whether it is text, in which JSON may be."""
    return payload.type.schema in ("string", "enum")


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _as_field(name: str) -> str:
    """The end of a schema that is a field's in another one."""
    return f'"field":{_quoted(name)}}}'


def _joined(parts: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL(" || ").join(parts)


def _remedy(column: str, kind: str) -> str:
    option = {"kafka_key": "--key-type", "kafka_value": "--value-type"}.get(column, "--header-type")
    return f"Make an outbox with `airflow-outbox init {option} {kind}`"


def _array(values: Sequence[sql.Composable]) -> sql.Composable:
    return sql.Composed([sql.SQL("ARRAY["), sql.SQL(", ").join(values), sql.SQL("]")])
