"""Make and migrate the tables of an outbox, and grant its roles.

Schema version 0 is goharvest's bare table, without the tables beside it. `schema.sql` makes version SCHEMA_VERSION
whole. Each migration leads from one version to the next, all in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import psycopg
from psycopg import sql

from airflow_outbox.errors import ConfigurationError, OutboxMissingError, SchemaVersionError
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.columns import Column, misfits, read_columns
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName, identifier
from airflow_outbox.postgres.outbox_types import OutboxTypes
from airflow_outbox.postgres.renaming import require_own_name
from airflow_outbox.postgres.soundness import require_sound
from airflow_outbox.postgres.stash_function import has_stash_function, make_stash_function, signature
from airflow_outbox.postgres.statements import Statements, composed, filled
from airflow_outbox.postgres.table import SCHEMA_VERSION, OutboxTable
from airflow_outbox.postgres.transaction_id_trigger import guard_loaded_rows
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


def init_outbox(
    connection: psycopg.Connection[Any],
    name: OutboxName,
    *,
    key_type: str | None = None,
    value_type: str | None = None,
    header_type: str | None = None,
    transaction_id: bool = False,
    archive_retention: float | None = None,
    stash_function: bool = False,
    create_schema: bool = True,
) -> list[str]:
    """Make the outbox's tables, or migrate them to this release's schema version, keeping what is there.

    The types (`varchar(n)`, `text` or `bytea`) are those of a new table's key, value and header values; a table that is
    there must have those that are given. `transaction_id` adds that column to a table without it, such as goharvest's
    (`cost_of_transaction_id` tells the cost). An `archive_retention` (seconds) makes the archive, and partitions for
    the days ahead, and drops older ones. `stash_function` makes the function `<outbox>_stash`, which is brought up to
    date where it is. A schema that is missing is an error unless `create_schema`.
    Returns what was done, in words: nothing when all was there. Raises ConfigurationError, SchemaVersionError,
    PostgresError.
    """
    name = located(connection, name)
    statements = Statements(connection, name)
    types = OutboxTypes(key_type, value_type, header_type)
    with translated(name), connection.transaction():
        statements.execute("connection.lock_name", {"name": name.text()})
        if not has_schema(connection, name, may_create=create_schema):
            statements.execute("init.create_schema", schema=identifier(name.schema or ""))
        found = read_columns(connection, name)
        is_new = version_table(connection, name) is None
        require_own_name(connection, name, is_there=bool(found), is_new=is_new)
        if not found:
            connection.execute(filled(script("schema.sql"), name, **types.parts))
            guard_loaded_rows(connection, name)
            _make_staging(connection, name)
            require_sound(connection, name)  # an archive may be there before the outbox
            done = [f"created {name} and the tables beside it, schema version {SCHEMA_VERSION}"]
            done += make_stash_function(connection, name, is_asked=stash_function)
            return done + _tended(connection, name, archive_retention)
        require_outbox(name, found, types)
        require_sound(connection, name)
        done = _migrate(connection, name, read_version(connection, name))
        if transaction_id and "transaction_id" not in found:
            statements.execute("init.add_transaction_id")
            guard_loaded_rows(connection, name)
            done.append(f"added the column transaction_id to {name}")
        elif "transaction_id" in found:
            mended = guard_loaded_rows(connection, name)
            done = done or mended  # a migration makes them, too
        made = _make_staging(connection, name)
        done = done or made
        done += make_stash_function(connection, name, is_asked=stash_function)
        return done + _tended(connection, name, archive_retention)


def require_outbox(name: OutboxName, found: Mapping[str, Column], types: OutboxTypes) -> None:
    """Raise ConfigurationError unless a table with these columns can be an outbox, of the types that are asked for."""
    if missing := GOHARVEST_COLUMNS - set(found):
        raise ConfigurationError(
            f"{name} exists but is not an outbox: it has no {', '.join(sorted(missing))}. Choose another name"
        )
    if unfitting := misfits(found):
        raise ConfigurationError(f"{name}.{unfitting[0]}. Change the column's type, or choose another name")
    for column, wanted in types.asked.items():
        if (present := found[column].short_type) != wanted:
            raise ConfigurationError(
                f"{name} is there, and its {column} is {present}, not {wanted}: only a new table gets the types that "
                "are asked for. Leave the option out, or choose another name"
            )


def has_schema(connection: psycopg.Connection[Any], name: OutboxName, *, may_create: bool) -> bool:
    """Whether the schema that an outbox's name gives is there. Raises ConfigurationError if it has to be."""
    if not name.schema or Statements(connection, name).row("init.schema_exists", {"schema": name.schema})[0]:
        return True
    if not may_create:
        raise ConfigurationError(
            f"there is no schema {name.schema} in database {connection.info.dbname}. Correct outbox_table, or give "
            "--create-schema"
        )
    return False


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
        parts += ["stash_function"] if has_stash_function(connection, name) else []
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
            **signature(connection, name),
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
    steps = migration(name, version)
    if steps:
        owner, may_change = Statements(connection, name).row("init.owner", {"table": name.text()})
        if not may_change:
            raise ConfigurationError(
                f"{name} is there and belongs to {owner}, for whom {connection.info.user} may not act. Run "
                "`airflow-outbox init` as its owner, or choose another name"
            )
    for step in steps:
        connection.execute(step)
    if steps:
        Statements(connection, name).execute("init.set_schema_version", version=sql.Literal(SCHEMA_VERSION))
    return [f"migrated {name} from schema version {version} to {SCHEMA_VERSION}"] if steps else []


def migration(name: OutboxName, version: int) -> list[sql.Composed]:
    """Return the scripts that lead from a schema version to this release's. Raises SchemaVersionError."""
    if version > SCHEMA_VERSION:
        raise SchemaVersionError(
            f"{name} is at schema version {version}, but this release knows {SCHEMA_VERSION}. "
            "Install a newer airflow-outbox"
        )
    parts = {
        "leader": name.beside("leader"),  # until version 6
        "leader_text": sql.Literal(name.text("leader")),
        "shard_alone": replace(name, schema=None, found_in=None).beside("shard"),
    }
    return [filled(migrations()[step], name, **parts) for step in range(version + 1, SCHEMA_VERSION + 1)]


def version_table(connection: psycopg.Connection[Any], name: OutboxName) -> str | None:
    """Return which table beside the outbox has its schema version; None where there is none, as beside goharvest's."""
    tables = ("state", "leader")
    return next((each for each in tables if "schema_version" in read_columns(connection, name.sibling(each))), None)


def read_version(connection: psycopg.Connection[Any], name: OutboxName) -> int:
    """Return the schema version of an existing outbox."""
    if (table := version_table(connection, name)) is None:
        return 0
    row = Statements(connection, name).row("init.schema_version", table=name.beside(table))
    if row is None:
        raise OutboxMissingError(
            f"{name.text(table)} is empty: restore its rows from a backup, or drop it and run `airflow-outbox init`"
        )
    return int(row[0])
