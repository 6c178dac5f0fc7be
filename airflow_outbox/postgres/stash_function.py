"""The function `<outbox>_stash`, for writers in any language: see `sql/stash_function.sql`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import psycopg
from psycopg import sql

from airflow_outbox.errors import ConfigurationError, OutboxMissingError
from airflow_outbox.postgres.columns import read_columns
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements, composed

_TEXT, _BYTES = sql.SQL("text"), sql.SQL("bytea")


def make_stash_function(connection: psycopg.Connection[Any], name: OutboxName, *, is_asked: bool) -> list[str]:
    """Make the function where it is asked for, and bring it up to date where it is there.

    Returns what was done, in words: nothing when it was there. Raises PostgresError; ConfigurationError when somebody
    else's function has that name.
    """
    schema, owner, holder, may_change = _place(connection, name)
    if not is_asked and not (holder == owner and may_change):
        return []
    if holder not in (None, owner):
        raise ConfigurationError(
            f"the function {name.sibling('stash')} belongs to {holder}, but {name} belongs to {owner}. Drop the "
            "function and run `airflow-outbox init --function` again"
        )
    name = name.located(schema)  # the function names the tables' schema, whatever its caller's path
    connection.execute(making_stash_function(name, signature(connection, name), owner=owner))
    return [] if holder else [f"created the function {name.sibling('stash')}"]


def making_stash_function(name: OutboxName, parts: Mapping[str, sql.SQL], *, owner: str) -> sql.Composed:
    """Return the statements that make the function with these types, for an owner as Postgres quotes it.

    `name` has its schema.
    """
    is_bytes = parts["header_type"] == _BYTES
    header = sql.SQL("convert_to(pair ->> 1, 'UTF8')" if is_bytes else "pair ->> 1")
    return composed("stash_function.make", name, owner=sql.SQL(cast("Any", owner)), header=header, **parts)


def has_stash_function(connection: psycopg.Connection[Any], name: OutboxName) -> bool:
    """Whether the outbox's owner has made the function. Raises PostgresError."""
    _, owner, holder, _ = _place(connection, name)
    return owner == holder


def signature(connection: psycopg.Connection[Any], name: OutboxName) -> dict[str, sql.SQL]:
    """Return the parts of statements with the function's types. Raises PostgresError."""
    columns = read_columns(connection, name)
    parts = {"key_type": "kafka_key", "value_type": "kafka_value", "header_type": "kafka_header_values"}
    return {part: _BYTES if columns[column].is_bytes else _TEXT for part, column in parts.items()}


def _place(connection: psycopg.Connection[Any], name: OutboxName) -> tuple[str, str, str | None, bool]:
    """The outbox's schema and owner, the owner of the function, if there is one, and whether the role may change it."""
    values = {"outbox": name.text(), "function": name.sibling("stash").table}
    row = Statements(connection, name).row("stash_function.place", values)
    if row is None:
        raise OutboxMissingError(f"there is no table {name}. Run `airflow-outbox init`")
    schema, owner, holder, may_change = row
    return schema, owner, holder, may_change
