"""The types of Debezium's values: how Connect's converters write a column of a Postgres type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_outbox.debezium.router import Router
from airflow_outbox.debezium.table import SourceColumn


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of Connect's. `fragment` names the statement that writes such a value as text; with `is_quoted`, JSON has
    that text in quotes. `json_fragment` is given where JSON has another text. `schema` is Connect's name of the type,
    with its `logical` name, in JSON's schemas. `scale` counts decimal places, and `max_length` characters.
    """

    fragment: str
    schema: str
    logical: Mapping[str, Any] = field(default_factory=dict)
    is_quoted: bool = True
    is_bytes: bool = False
    json_fragment: str | None = None
    scale: int = 0
    max_length: int | None = None

    @property
    def is_decimal(self) -> bool:
        """Whether it is an exact number, which JSON may have as bytes or as a number."""
        return self.json_fragment is not None


class UnknownTypeError(ValueError):
    """A type that is not translated. Its text says what to do."""


def _logical(name: str) -> Mapping[str, Any]:
    return {"name": f"io.debezium.{name}", "version": 1}


_PLAIN = ValueType("text", "string")
_BASE64 = ValueType("base64", "bytes", is_bytes=True)
_FIXED: Mapping[str, ValueType] = {
    "text": _PLAIN,
    "character varying": _PLAIN,
    "citext": _PLAIN,
    "character": ValueType("padded", "string"),
    "uuid": ValueType("text", "string", _logical("data.Uuid")),
    "json": ValueType("text", "string", _logical("data.Json")),
    "jsonb": ValueType("text", "string", _logical("data.Json")),
    "smallint": ValueType("text", "int16", is_quoted=False),
    "integer": ValueType("text", "int32", is_quoted=False),
    "bigint": ValueType("text", "int64", is_quoted=False),
    "boolean": ValueType("text", "boolean", is_quoted=False),
    "timestamp with time zone": ValueType("zoned", "string", _logical("time.ZonedTimestamp")),
    "date": ValueType("days", "int32", _logical("time.Date"), is_quoted=False),
}
_BYTES = {"bytes": _BASE64, "base64": ValueType("base64", "string"), "hex": ValueType("hex", "string")}
_MICROSECONDS = ValueType("microseconds", "int64", _logical("time.MicroTimestamp"), is_quoted=False)
_MILLISECONDS = ValueType("milliseconds", "int64", _logical("time.Timestamp"), is_quoted=False)
_ADAPTIVE = ("adaptive", "adaptive_time_microseconds")
_MILLISECOND_DIGITS = 3
_MOST_DIGITS = 18
"""Digits of an exact number that fit into eight bytes."""
_PLAIN_PLACES = 6
"""Decimal places up to which Java writes no exponent."""


def type_of(column: SourceColumn, router: Router) -> ValueType:
    """Return the type that Debezium reads a column as. Raises UnknownTypeError."""
    if column.is_enum:
        return ValueType("text", "enum")
    if column.type in ("date", "timestamp without time zone") and router.time_mode not in _ADAPTIVE:
        raise UnknownTypeError(
            f"column {column.name} is a {column.type}, which is not translated with time.precision.mode="
            f"{router.time_mode}. Write it as text"
        )
    if column.type == "timestamp without time zone":
        is_coarse = column.precision is not None and column.precision <= _MILLISECOND_DIGITS
        return _MILLISECONDS if is_coarse else _MICROSECONDS
    if column.type == "bytea" and router.binary_mode in _BYTES:
        return _BYTES[router.binary_mode]
    if column.type == "numeric" and router.decimal_mode == "string":
        return _PLAIN
    if column.type == "numeric" and router.decimal_mode == "precise":
        return _decimal(column)
    if column.type in _FIXED:
        return _FIXED[column.type]
    mode = f" with decimal.handling.mode={router.decimal_mode}" if column.type == "numeric" else ""
    raise UnknownTypeError(
        f"column {column.name} is {column.type}, which is not translated{mode}. Write it as text, or leave it out"
    )


def _decimal(column: SourceColumn) -> ValueType:
    if column.digits is None or column.scale is None:
        raise UnknownTypeError(
            f"column {column.name} is numeric without a precision. Debezium sends such a number as a structure of "
            "bytes and their scale, which is not translated. Give the column a precision, or write it as text"
        )
    if column.digits > _MOST_DIGITS or not 0 <= column.scale <= _MOST_DIGITS:
        raise UnknownTypeError(
            f"column {column.name} is numeric({column.digits},{column.scale}), and only numbers of up to "
            f"{_MOST_DIGITS} digits are translated with decimal.handling.mode=precise. Write it as text"
        )
    parameters = {"scale": str(column.scale), "connect.decimal.precision": str(column.digits)}
    return ValueType(
        "text" if column.scale <= _PLAIN_PLACES else "small_decimal",
        "bytes",
        {"name": "org.apache.kafka.connect.data.Decimal", "version": 1, "parameters": parameters},
        json_fragment="unscaled",
        scale=column.scale,
        max_length=column.digits + len("-0.E-18"),
    )
