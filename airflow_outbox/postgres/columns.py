"""An outbox's columns, which decide how a statement about it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import composed


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the outbox: its type as Postgres names it, and its limit in characters, if any."""

    type: str
    max_length: int | None

    @property
    def is_bytes(self) -> bool:
        return self.type.startswith("bytea")

    @property
    def short_type(self) -> str:
        """The type as people write it, an array's without its brackets: `varchar(100)`, `text`, `bytea`."""
        if self.type != "character varying":
            return self.type.removesuffix("[]")
        return "varchar" if self.max_length is None else f"varchar({self.max_length})"


_FITTING_TYPES = {
    "kafka_topic": ("character varying", "text"),
    "kafka_key": ("character varying", "text", "bytea"),
    "kafka_value": ("character varying", "text", "bytea"),
    "kafka_header_keys": ("text[]",),
    "kafka_header_values": ("text[]", "bytea[]"),
    "leader_id": ("uuid",),
}


def misfits(columns: Mapping[str, Column]) -> list[str]:
    """Return the columns of types that can't be read, each as `kafka_value is jsonb; it must be text or bytea`."""
    return [
        f"{column} is {columns[column].type}; it must be {' or '.join(types)}"
        for column, types in _FITTING_TYPES.items()
        if column in columns and columns[column].type not in types
    ]


def lacks_transaction_ids(name: OutboxName) -> str:
    """Return what is wrong with a table of goharvest's that is to be harvested exactly once."""
    return f"{name} has no column transaction_id, and can't be harvested exactly once without it"


def column_types(columns: Mapping[str, Column]) -> dict[str, sql.SQL]:
    """Return the parts `key_type`, `value_type` and `header_type` of a statement, as the outbox's columns have them."""
    parts = {"key_type": "kafka_key", "value_type": "kafka_value", "header_type": "kafka_header_values"}
    return {part: sql.SQL(cast("Any", columns[column].type.removesuffix("[]"))) for part, column in parts.items()}


def read_columns(connection: psycopg.Connection[Any], name: OutboxName) -> Mapping[str, Column]:
    """Return the columns of an outbox by name; empty when there is no such table."""
    with translated(name), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(composed("connection.columns"), {"table": name.text()})
        return {column: Column(kind, max_length) for column, kind, max_length in cursor}
