"""The layout of staged rows: which columns of a DataFrame are sent to Postgres, as which types, and what is constant.

A staged row has `topic`, `key`, `value`, `header_keys`, `header_values`, and `partition` where it is given.

Rows travel in one of two forms:

- As *text*, the fastest, if nothing has to look into them before the outbox: lines for the outbox's own COPY, staged in
  pieces that Postgres does not look into, either.
- As *rows*, if `commitSql` or `orderBy` reads them: in a table with a column each, also for the job's own columns that
  these may name. There a constant is not sent; the view `staged` still has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.spark.options import WriteOptions
from airflow_outbox.stash.cloud_events import PREFIX
from airflow_outbox.values.trace_context import TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from airflow_outbox.postgres.columns import Column

RowPart = Literal["whole", "header names", "header values"]

_RECORD_TYPES = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
    "partition": ("int",),
}
_OUTBOX_COLUMNS = {
    "topic": "kafka_topic",
    "key": "kafka_key",
    "value": "kafka_value",
    "header_keys": "kafka_header_keys",
    "header_values": "kafka_header_values",
    "partition": "kafka_partition",
}
_POSTGRES_TYPES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """A column of staged rows: its name, its Postgres type, and the place of its source in the DataFrame.

    `max_length` is its limit in characters. The DataFrame's column `headers` makes two columns; each list in them ends
    with the `added` elements, unless the row has a trace context of its own.
    """

    name: str
    type: str
    place: int
    part: RowPart = "whole"
    max_length: int | None = None
    added: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedColumns:
    """The columns that a write stages: `sent`, in this order, and `constant`, with the type and value for all rows.

    `is_text` says in which form. `dates` says whether the outbox must be told the time.
    """

    sent: tuple[StagedColumn, ...]
    constant: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    is_text: bool = False
    dates: bool = False

    @property
    def record_columns(self) -> list[str]:
        """The staged columns that make a record, in the order of `outbox_columns`."""
        there = {column.name for column in self.sent} | set(self.constant)
        return [name for name in _OUTBOX_COLUMNS if name in there]

    @property
    def outbox_columns(self) -> list[str]:
        """The outbox's columns that the records fill."""
        return [_OUTBOX_COLUMNS[name] for name in self.record_columns]

    @property
    def text_columns(self) -> list[str]:
        """The outbox's columns in the order of a line of text: constants come first."""
        names = [*self.constant, *(column.name for column in self.sent)]
        return [*(["create_time"] if self.dates else []), *(_OUTBOX_COLUMNS[name] for name in names)]


def found_names(names: Sequence[str], options: WriteOptions) -> list[str]:
    """Return the names of a DataFrame's columns, with those that mean something here in lower case: Spark finds a
    column in any case, too. Where there is one in lower case, others of its name are the job's own.
    """

    def found(name: str) -> str:
        lower = name.lower()
        is_known = lower in _RECORD_TYPES or (options.are_cloud_events and lower.startswith(PREFIX))
        return lower if is_known and lower not in names else name

    return [found(name) for name in names]


def as_found(schema: StructType, options: WriteOptions) -> tuple[StructType, WriteOptions]:
    """Return the schema with the names that are found, and the options with `orderBy` as the schema names it."""
    from pyspark.sql.types import StructField, StructType

    names = found_names(schema.fieldNames(), options)
    fields = [
        StructField(name, field.dataType, field.nullable) for name, field in zip(names, schema.fields, strict=True)
    ]
    any_case = {name.lower(): name for name in names}
    order_by = tuple(name if name in names else any_case.get(name.lower(), name) for name in options.order_by)
    return StructType(fields), replace(options, order_by=order_by)


def plan(
    schema: StructType, *, options: WriteOptions, outbox: Mapping[str, Column], defaults: Collection[str]
) -> StagedColumns:
    """Plan how rows of this schema are staged for this outbox, which has `defaults` for these of its columns.

    Raises ConfigurationError, which names the column.
    """
    types = {column.name: column.dataType.simpleString() for column in schema.fields}
    places = {column.name: place for place, column in enumerate(schema.fields)}
    constant = _constants(options, outbox, has_headers="headers" in types)
    _check(schema.fieldNames(), types, options=options, outbox=outbox)
    sent: list[StagedColumn] = []

    def send(name: str, column: str, part: RowPart = "whole", added: Iterable[str] = ()) -> None:
        kind = outbox[_OUTBOX_COLUMNS[name]]
        sized = f"varchar({kind.max_length})" if kind.max_length is not None else kind.type
        sent.append(StagedColumn(name, sized, places[column], part, kind.max_length, tuple(added)))

    for name in ("topic", "key", "value", "partition"):
        if name in types and name not in constant:
            send(name, name)
    if "headers" in types and options.headers is None:
        send("header_keys", "headers", "header names", (name for name, _ in options.trace_headers))
        send("header_values", "headers", "header values", (value for _, value in options.trace_headers))
    taken = {column.name for column in sent} | set(constant)
    for name in {"header_keys", "header_values"} - taken:
        if _OUTBOX_COLUMNS[name] not in defaults:
            constant[name] = (outbox[_OUTBOX_COLUMNS[name]].type, [])
    for place, column in enumerate(schema.fields):
        wanted = options.commit_sql is not None or column.name in options.order_by
        if wanted and column.name not in {*taken, *_RECORD_TYPES}:
            sent.append(StagedColumn(column.name, _postgres_type(column.name, column.dataType), place))
    is_text = options.commit_sql is None and not options.order_by
    return StagedColumns(tuple(sent), constant, is_text, dates="create_time" not in defaults)


def _constants(options: WriteOptions, outbox: Mapping[str, Column], *, has_headers: bool) -> dict[str, tuple[str, Any]]:
    headers = _constant_headers(options, has_headers=has_headers)
    values: dict[str, Any] = {
        "topic": options.topic,
        "key": options.key,
        "header_keys": None if headers is None else [name for name, _ in headers],
        "header_values": None if headers is None else [value for _, value in headers],
        "partition": options.partition,
    }

    def stored(name: str, value: Any) -> Any:
        if not outbox[_OUTBOX_COLUMNS[name]].is_bytes:
            return value
        return [each.encode() for each in value] if isinstance(value, list) else value.encode()

    return {
        name: (outbox[_OUTBOX_COLUMNS[name]].type, stored(name, value))
        for name, value in values.items()
        if value is not None and _OUTBOX_COLUMNS[name] in outbox
    }


def _constant_headers(options: WriteOptions, *, has_headers: bool) -> Sequence[tuple[str, str]] | None:
    """The headers that all records have in common; None leaves them to a column, or to the outbox's default."""
    given, context = options.headers, options.trace_headers
    if given is None:
        return None if has_headers or not context else context
    has_own = any(name in (TRACEPARENT, TRACESTATE) for name, _ in given)
    return given if has_own else [*given, *context]


def _check(
    columns: Sequence[str], types: Mapping[str, str], *, options: WriteOptions, outbox: Mapping[str, Column]
) -> None:
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise ConfigurationError(f"column {twice}: the name occurs twice. Give each column its own name")
    for name in ("topic", "key"):
        if name not in types and getattr(options, name) is None:
            raise ConfigurationError(f"column {name} is missing. Add it, or give the option {name} for all records")
    if "value" not in types:
        raise ConfigurationError("column value is missing. Add it; null is a tombstone")
    for name in ("header_keys", "header_values"):
        if name in types:
            raise ConfigurationError(f"column {name}: the view `staged` has its own column of that name. Rename yours")
    for name, allowed in _RECORD_TYPES.items():
        if name in types and types[name] not in allowed:
            wanted = " or ".join(allowed)
            raise ConfigurationError(f"column {name} is {types[name]}. Cast it to {wanted}")
    if ("partition" in types or options.partition is not None) and "kafka_partition" not in outbox:
        raise ConfigurationError(
            "column partition: the outbox has no column kafka_partition. Leave the partition out; the key decides"
        )
    for name in options.order_by:
        if name not in types:
            raise ConfigurationError(f"option orderBy: there is no column {name}. The columns are {', '.join(columns)}")
        if name == "headers":
            raise ConfigurationError("option orderBy: headers have no order. Name another column")


def _postgres_type(column: str, kind: DataType) -> str:
    name = kind.simpleString()
    if name in _POSTGRES_TYPES:
        return _POSTGRES_TYPES[name]
    if name.startswith("decimal("):
        return name.replace("decimal", "numeric")
    element: Any = getattr(kind, "elementType", None)
    if element is not None and not hasattr(element, "elementType"):
        return f"{_postgres_type(column, element)}[]"
    raise ConfigurationError(
        f"column {column} is {name}, which has no equivalent in Postgres. Cast it, for instance to a "
        "string with to_json()"
    )
