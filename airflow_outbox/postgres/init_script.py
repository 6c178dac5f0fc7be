"""The script of what `init_outbox` would run: for owners who let nobody else make tables in their database."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.columns import read_columns
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName, identifier
from airflow_outbox.postgres.outbox_types import OutboxTypes
from airflow_outbox.postgres.renaming import require_own_name, schema_of
from airflow_outbox.postgres.schema import has_schema, migration, read_version, require_outbox, version_table
from airflow_outbox.postgres.stash_function import has_stash_function, making_stash_function, signature
from airflow_outbox.postgres.statements import Statements, composed, filled
from airflow_outbox.postgres.table import SCHEMA_VERSION
from airflow_outbox.postgres.transaction_id_trigger import is_guarded
from airflow_outbox.sql import script

_WHOEVER_RUNS_IT = "CURRENT_USER"


def init_script(
    connection: psycopg.Connection[Any],
    name: OutboxName,
    types: OutboxTypes,
    *,
    transaction_id: bool = False,
    archives: bool = False,
    stash_function: bool = False,
    create_schema: bool = False,
) -> list[str]:
    """Return the statements that `init_outbox` would run, in order, each text with one or more of them; none where all
    is there.

    They are to be run in one transaction by the role that is to own the tables, or owns them. This only looks, and
    needs no right beside that to see the outbox's schema version. Raises ConfigurationError, SchemaVersionError,
    PostgresError.
    """
    name = located(connection, name)
    with translated(name):
        is_there = has_schema(connection, name, may_create=create_schema)
        schema = schema_of(connection, name)
        name = name.located(schema)
        found = read_columns(connection, name)
        require_own_name(connection, name, is_there=bool(found), is_new=version_table(connection, name) is None)
        made: list[sql.Composable] = []
        if not is_there:
            made.append(composed("init.create_schema", schema=identifier(schema)))
        if found:
            require_outbox(name, found, types)
            made += _changes(connection, name, transaction_id=transaction_id)
        else:
            made += [filled(script("schema.sql"), name, **types.parts), _guard(name)]
        made += _staging(connection, name, schema)
        if stash_function and not (found and has_stash_function(connection, name)):
            parts = signature(connection, name) if found else types.signature
            made.append(making_stash_function(name, parts, owner=_WHOEVER_RUNS_IT))
        archive = Archive(connection, name)
        if archives and not archive.exists:
            made += archive.making()
        return [each.as_string(connection).strip().removesuffix(";") + ";" for each in made]


def _changes(connection: psycopg.Connection[Any], name: OutboxName, *, transaction_id: bool) -> list[sql.Composable]:
    """The statements for what a table that is there lacks."""
    statements = Statements(connection, name)
    made: list[sql.Composable] = [*migration(name, read_version(connection, name))]
    if made:
        made.append(statements.composed("init.set_schema_version", version=sql.Literal(SCHEMA_VERSION)))
    has_transaction_id = "transaction_id" in read_columns(connection, name)
    if transaction_id and not has_transaction_id:
        made.append(statements.composed("init.add_transaction_id"))
    if (transaction_id or has_transaction_id) and not (has_transaction_id and is_guarded(connection, name)):
        made += [_guard(name), statements.composed("transaction_id_trigger.read_again")]
    return made


def _guard(name: OutboxName) -> sql.Composed:
    return composed("transaction_id_trigger.guard", name, owner=sql.SQL(_WHOEVER_RUNS_IT))


def _staging(connection: psycopg.Connection[Any], name: OutboxName, schema: str) -> list[sql.Composable]:
    staging = name.staging_schema(schema)
    if Statements(connection, name).row("init.schema_exists", {"schema": staging})[0]:
        return []
    owner = sql.SQL(_WHOEVER_RUNS_IT)
    return [composed("init.create_staging_schema", staging=identifier(staging), owner=owner)]
