"""The columns of staged rows: those of Spark's Kafka sink for the record, and the job's own beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_outbox.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from airflow_outbox import table

RESERVED = ("header_keys", "header_values", "staged_by")
_RECORD_TYPES = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "partition": ("int",),
}
_HEADERS = "array<struct<key:string,value:string>>"
_BINARY_HEADERS = "array<struct<key:string,value:binary>>"
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
    """A column of the staging table: its name, and its type as Postgres calls it."""

    name: str
    type: str


def staged_columns(frame: DataFrame) -> list[StagedColumn]:
    """The columns to stage a DataFrame's rows in. Raises ConfigurationError for a type that has no like in Postgres."""
    return [StagedColumn(field.name, _postgres_type(field.name, field.dataType)) for field in frame.schema.fields]


def record_frame(frame: DataFrame, *, outbox: Mapping[str, table.Column], order_by: Sequence[str]) -> DataFrame:
    """The DataFrame with its headers taken apart, and all as the outbox's columns are: text or bytes.

    It must have the columns `topic`, `key` and `value`; it may have `headers`, `partition` and any others.
    Raises ConfigurationError, which names the column.
    """
    from pyspark.sql import functions as F

    _check(frame, outbox=outbox, order_by=order_by)

    def stored_as(column: str) -> str:
        return "binary" if outbox[column].is_bytes else "string"

    def own(column: str) -> Column:
        return F.col("`" + column.replace("`", "``") + "`")  # a name may have dots in it

    none = F.array().cast(dict(frame.dtypes).get("headers", _HEADERS))
    pairs = F.coalesce(frame["headers"], none) if "headers" in frame.columns else none
    return frame.select(
        frame["topic"],
        frame["key"].cast(stored_as("kafka_key")).alias("key"),
        frame["value"].cast(stored_as("kafka_value")).alias("value"),
        pairs["key"].alias("header_keys"),
        pairs["value"].cast(f"array<{stored_as('kafka_header_values')}>").alias("header_values"),
        *(own(name) for name in frame.columns if name not in {"topic", "key", "value", "headers"}),
    )


def _check(frame: DataFrame, *, outbox: Mapping[str, table.Column], order_by: Sequence[str]) -> None:
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    if len(types) < len(frame.columns):
        raise ConfigurationError(f"columns {frame.columns}: a name comes twice. Give each column a name of its own")
    if reserved := [name for name in types if name in RESERVED]:
        raise ConfigurationError(f"column {reserved[0]}: the name is taken by the staging table. Rename it")
    if missing := [name for name in ("topic", "key", "value", *order_by) if name not in types]:
        raise ConfigurationError(
            f"column {missing[0]} is missing. Add it: topic, key, value and the columns to order by are needed"
        )
    if not order_by:
        raise ConfigurationError("order_by names no column. Name those that give the records of one key their order")
    for name, allowed in _RECORD_TYPES.items():
        if name in types and types[name] not in allowed:
            raise ConfigurationError(f"column {name} is {types[name]}. Cast it to {' or '.join(allowed)}")
    if types.get("headers", _HEADERS) not in (_HEADERS, _BINARY_HEADERS):
        raise ConfigurationError(f"column headers is {types['headers']}. Cast it to {_HEADERS} or {_BINARY_HEADERS}")
    if "partition" in types and "kafka_partition" not in outbox:
        raise ConfigurationError(
            "column partition: the outbox has no column kafka_partition. Leave the partition to the key"
        )


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
        f"column {column} is {name}, which has no like in Postgres. Cast it, to a string by to_json() for instance"
    )
