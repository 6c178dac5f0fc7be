"""Make and migrate the tables of an outbox, and grant its roles.

Schema version 0 is goharvest's bare table, without the tables beside it. `schema.sql` makes version SCHEMA_VERSION
whole. Each migration leads from one version to the next, all in one transaction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast, get_args

import psycopg
from psycopg import sql

from airflow_outbox.errors import ConfigurationError, OutboxMissingError, SchemaVersionError
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.columns import read_columns
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.loaded_rows import guard_loaded_rows
from airflow_outbox.postgres.names import OutboxName, identifier
from airflow_outbox.postgres.soundness import require_sound
from airflow_outbox.postgres.statements import Statements, composed, filled
from airflow_outbox.postgres.table import SCHEMA_VERSION, OutboxTable
from airflow_outbox.sql import migrations, script

Role = Literal["stash", "harvest", "look", "operate", "job"]
ROLES: tuple[Role, ...] = get_args(Role)

GOHARVEST_COLUMNS = frozenset(
    {
        "id",
        "create_time",
        "kafka_topic",
        "kafka_key",
        "kafka_value",
        "kafka_header_keys",
        "kafka_header_values",
        "leader_id",
    }
)
COLUMN_TYPES = ("text", "bytea")


def init_outbox(
    connection: psycopg.Connection[Any],
    name: OutboxName,
    *,
    key_type: str = "varchar(100)",
    value_type: str = "varchar(10000)",
    header_type: str = "text",
    transaction_id: bool = False,
    archive_retention: float | None = None,
) -> list[str]:
    """Make the outbox's tables, or migrate them to this release's schema version, keeping what is there.

    The types (`varchar(n)`, `text` or `bytea`) are those of a new table's key, value and header values.
    `transaction_id` adds that column to a table without it, such as goharvest's (`cost_of_transaction_id` tells the
    cost). An `archive_retention` (seconds) makes the archive, and partitions for the days ahead, and drops older ones.
    Returns what was done, in words: nothing when all was there. Raises ConfigurationError, SchemaVersionError,
    PostgresError.
    """
    name = located(connection, name)
    statements = Statements(connection, name)
    types = {"key_type": _type(key_type), "value_type": _type(value_type), "header_type": _type(header_type)}
    with translated(name), connection.transaction():
        statements.execute("connection.lock_name", {"name": name.text()})
        if name.schema and not statements.row("init.schema_exists", {"schema": name.schema})[0]:
            statements.execute("init.create_schema", schema=identifier(name.schema))
        found = set(read_columns(connection, name))
        if not found:
            connection.execute(filled(script("schema.sql"), name, **types))
            guard_loaded_rows(connection, name)
            _make_staging(connection, name)
            require_sound(connection, name)  # an archive may be there before the outbox
            done = [f"created {name} and the tables beside it, schema version {SCHEMA_VERSION}"]
            return done + _tended(connection, name, archive_retention)
        if missing := GOHARVEST_COLUMNS - found:
            raise ConfigurationError(
                f"{name} exists but is not an outbox: it has no {', '.join(sorted(missing))}. Choose another name"
            )
        require_sound(connection, name)
        done = _migrate(connection, name, _version(connection, name))
        if transaction_id and "transaction_id" not in found:
            statements.execute("init.add_transaction_id")
            guard_loaded_rows(connection, name)
            done.append(f"added the column transaction_id to {name}")
        elif "transaction_id" in found:
            mended = guard_loaded_rows(connection, name)
            done = done or mended  # a migration makes them, too
        made = _make_staging(connection, name)
        done = done or made
        return done + _tended(connection, name, archive_retention)


def cost_of_transaction_id(connection: psycopg.Connection[Any], name: OutboxName) -> str | None:
    """Return what adding the column transaction_id costs, in words; None where it is there. Raises PostgresError."""
    name = located(connection, name)
    if "transaction_id" in read_columns(connection, name):
        return None
    size, rows = Statements(connection, name).row("init.table_size", {"table": name.text()}) or ("?", 0)
    return f"rewriting {name} ({size}, about {rows} rows), which nobody can read or write meanwhile"


def grant_statements(connection: psycopg.Connection[Any], name: OutboxName, role: Role, grantee: str) -> list[str]:
    """Return the statements that let `grantee` do what `role` does.

    `operate` may look, and ask the leader for things. `job` may stash, and commit once under an id.
    """
    table = OutboxTable(connection, name)
    name, columns = table.name, table.columns
    parts: list[str] = {"job": ["stash", "job"], "operate": ["look", "operate"]}.get(role, [role])
    if Archive(connection, name).exists:
        parts += {
            "harvest": ["harvest_archive"],
            "look": ["look_archive"],
            "operate": ["look_archive", "replay", "stash"],
        }.get(role, [])
    if "stash" in parts:
        also = {"transaction_id": "stash_ticket", "kafka_partition": "stash_partition"}
        parts += [part for column, part in also.items() if column in columns]
    schema, sequence = Statements(connection, name).row("init.where_it_is", {"table": name.text()}) or ("", None)
    staging, owner = None, None
    if "job" in parts:
        staging, holder, owner, _ = _staging(connection, name)
        parts = parts if holder else ["job_schema", *parts]
    if sequence is None:
        raise OutboxMissingError(
            f"the ids of {name} come from no sequence. Create the table with `airflow-outbox init`"
        )
    texts = [
        composed(
            f"grants.{part}",
            name,
            role=identifier(grantee),
            schema=identifier(schema),
            sequence=identifier(*sequence),
            default=name.beside("archive_default"),
            staging=identifier(staging or ""),
            owner=sql.SQL(owner or ""),  # as Postgres gave it: already quoted
        ).as_string(connection)
        for part in parts
    ]
    return [line for text in texts for line in text.splitlines() if line and not line.startswith("--")]


def _staging(connection: psycopg.Connection[Any], name: OutboxName) -> tuple[str, str | None, str, bool]:
    """Return the schema in which jobs stage, its owner (None: it is not there), the outbox's owner, and whether the
    connected role may make it.

    Raises ConfigurationError when it is somebody else's, who could then read what jobs stage.
    """
    statements = Statements(connection, name)
    schema, _ = statements.row("init.where_it_is", {"table": name.text()}) or ("", None)
    staging = name.staging_schema(schema)
    found = statements.row("init.staging_schema", {"table": name.text(), "staging": staging})
    holder, is_trusted, owner, may_make = cast("tuple[str | None, bool, str, bool]", found)
    if not is_trusted:
        raise ConfigurationError(
            f"schema {staging}, in which jobs stage records, belongs to {holder}, but {name} belongs to {owner}. "
            f"Drop the schema, or make {owner} its owner"
        )
    return staging, holder, owner, may_make


def _make_staging(connection: psycopg.Connection[Any], name: OutboxName) -> list[str]:
    staging, holder, owner, may_make = _staging(connection, name)
    if holder or not may_make:
        return []
    quoted = sql.SQL(cast("Any", owner))  # as Postgres gave it
    Statements(connection, name).execute("init.create_staging_schema", staging=identifier(staging), owner=quoted)
    return [f"created schema {staging}, in which jobs stage records"]


def _tended(connection: psycopg.Connection[Any], name: OutboxName, retention: float | None) -> list[str]:
    if retention is None:
        return []
    archive = Archive(connection, name)
    done = archive.make()
    tended = archive.tend(now=archive.now(), retention=retention)
    return done or tended  # a new archive has new partitions: nobody needs to read their names


def _migrate(connection: psycopg.Connection[Any], name: OutboxName, version: int) -> list[str]:
    if version > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"{name} is at schema version {version}, but this release knows {SCHEMA_VERSION}. "
            "Install a newer airflow-outbox"
        )
    steps = range(version + 1, SCHEMA_VERSION + 1)
    parts = {
        "leader": name.beside("leader"),  # until version 6
        "leader_text": sql.Literal(name.text("leader")),
        "shard_alone": replace(name, schema=None, found_in=None).beside("shard"),
    }
    for step in steps:
        connection.execute(filled(migrations()[step], name, **parts))
    if steps:
        Statements(connection, name).execute("init.set_schema_version", {"version": SCHEMA_VERSION})
    return [f"migrated {name} from schema version {version} to {SCHEMA_VERSION}"] if steps else []


def _version(connection: psycopg.Connection[Any], name: OutboxName) -> int:
    """Return the schema version of an existing outbox."""
    tables = ("state", "leader")
    found = (table for table in tables if "schema_version" in read_columns(connection, name.sibling(table)))
    if (table := next(found, None)) is None:
        return 0
    row = Statements(connection, name).row("init.schema_version", table=name.beside(table))
    if row is None:
        raise OutboxMissingError(
            f"{name.text(table)} is empty: restore its rows from a backup, or drop it and run `airflow-outbox init`"
        )
    return int(row[0])


def _type(kind: str) -> sql.SQL:
    plain = kind.strip().lower()
    length = plain.removeprefix("varchar(").removesuffix(")")
    if plain in COLUMN_TYPES or (plain == f"varchar({length})" and length.isdecimal() and int(length) > 0):
        return sql.SQL(cast("Any", plain))
    raise ConfigurationError(f"{kind!r} is not a type for a key, value or header: give varchar(n), text or bytea")
