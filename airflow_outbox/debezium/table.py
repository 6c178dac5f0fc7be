"""The application's outbox table, as its columns are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the application's table.

    `type` is Postgres' name of it, without a length, and for a domain its base; `is_enum`: it is one of the database's
    own. `max_length` is in characters, and `precision` in digits of a second. `digits` and `scale` are of an exact
    number: how many it has, and how many of them are behind the point.
    """

    name: str
    type: str
    is_enum: bool
    is_nullable: bool
    max_length: int | None
    precision: int | None
    default: str | None
    digits: int | None = None
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class SourceTable:
    """The application's table: where it is, and its columns by name."""

    schema: str
    table: str
    kind: str
    columns: Mapping[str, SourceColumn]
    children: Sequence[str] = ()

    @property
    def place(self) -> tuple[str, str]:
        """Its schema and its own name."""
        return self.schema, self.table

    @property
    def name(self) -> OutboxName:
        """Its name, for statements and for people."""
        return OutboxName(self.schema, self.table)


def read_table(connection: psycopg.Connection[Any], text: str, outbox: OutboxName) -> SourceTable:
    """Return the table of this name. Raises ConfigurationError where there is none, PostgresError."""
    statements = Statements(connection, outbox)
    row = statements.row("debezium.table", {"table": located(connection, OutboxName.parse(text)).text()})
    if row is None:
        raise ConfigurationError(
            f"there is no table {text} for this role. Give the schema, too, such as --table public.outbox"
        )
    oid, schema, table, kind, is_temporary, children = row
    if kind not in ("r", "p") or is_temporary:
        raise ConfigurationError(f"{text} is not a table that Debezium could read. Name the application's outbox table")
    columns = [SourceColumn(*each) for each in statements.rows("debezium.columns", {"oid": oid})]
    return SourceTable(schema, table, kind, {column.name: column for column in columns}, children)
