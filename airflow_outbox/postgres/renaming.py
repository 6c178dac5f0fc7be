"""Rename an outbox: its table and all that is named after it, in one transaction.

`ALTER TABLE … RENAME` renames the table alone. The tables beside it, with parked records and the state of the harvest,
then belong to no table, and the table looks like one that goharvest made. `init` refuses both halves; `rename_outbox`
joins them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg

from airflow_outbox.errors import ConfigurationError, OutboxMissingError
from airflow_outbox.postgres.columns import read_columns
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import MAX_IDENTIFIER_BYTES, OutboxName, identifier
from airflow_outbox.postgres.slots import index_names
from airflow_outbox.postgres.soundness import KINDS
from airflow_outbox.postgres.stash_function import make_stash_function
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import SCHEMA_VERSION
from airflow_outbox.postgres.trail import enter

_RELATIONS = ("leader", *filter(None, KINDS), "archive_default")  # "leader": until version 6
_FUNCTIONS = ("loaded", "asked", "pruned", "stash")


def require_own_name(connection: psycopg.Connection[Any], name: OutboxName, *, is_there: bool, is_new: bool) -> None:
    """Raise ConfigurationError if making or migrating tables under this name would divide an outbox that is there.

    `is_there`: there is a table of this name; `is_new`: there is nothing of an outbox's beside it.
    """
    if is_there and is_new:
        for old in _moved(connection, name, to=name):
            raise ConfigurationError(
                f"{name} is the table of the outbox {old} and was renamed alone: its parked records and its state are "
                f"still beside the old name. Run `airflow-outbox rename {old.typed()} {name.typed()}`"
            )
    if not is_there and not is_new:
        for new in _moved(connection, name, was=name):
            raise ConfigurationError(
                f"the table {name} was renamed to {new}, and what is beside it still has the old name. Run "
                f"`airflow-outbox rename {name.typed()} {new.typed()}`, and give {new} as outbox_table"
            )
        raise ConfigurationError(
            f"there is no table {name}, but {name.sibling('state')} and others are there: somebody has dropped the "
            f"outbox's table, or moved it. Restore it. If nothing in {name.sibling('parked')} is needed any more, drop "
            f"the tables whose names begin with {name.table}_, and run `airflow-outbox init` again"
        )


def rename_outbox(
    connection: psycopg.Connection[Any],
    old: OutboxName,
    new: OutboxName,
    *,
    silence: float = 6.0,
    on_behalf_of: str | None = None,
) -> list[str]:
    """Rename an outbox, or what `ALTER TABLE … RENAME` has left behind. Return what was done, in words.

    All of it is one transaction, which waits a second for locks. Rights and contents stay. Topics do not
    bear the table's name. The trail names whom it is made for (`on_behalf_of`), except in tables of an earlier schema
    version. Raises ConfigurationError, also when a leader was heard from within `silence` seconds;
    OutboxMissingError; PostgresError.
    """
    old = _placed(connection, old)
    schema = schema_of(connection, old)
    if new.schema not in (None, schema):
        raise ConfigurationError(f"{new} is in another schema than {old}. Give both names in one schema")
    old, new = old.located(schema), replace(new, schema=old.schema, found_in=schema)
    statements = Statements(connection, old)
    with translated(old), connection.transaction():
        for text in sorted((old.text(), new.text())):
            statements.execute("connection.lock_name", {"name": text})
        statements.execute("connection.wait_briefly")
        is_renamed = _require_renamable(connection, old, new)
        _require_no_leader(statements, old, silence)
        renaming = _Renaming(connection, schema, old, new)
        renaming.require_free(is_renamed=is_renamed)
        if not is_renamed:
            renaming.rename_table(old.table, new.table)
        renaming.rename_what_is_beside()
        renaming.rename_staging()
        has_function = renaming.rename_functions()
        make_stash_function(connection, new, is_asked=has_function)  # it names the tables
        _enter(connection, old, new, on_behalf_of)
    return [f"renamed {'what is beside ' if is_renamed else ''}{old} to {new}{' and all beside it' * (not is_renamed)}"]


def _require_renamable(connection: psycopg.Connection[Any], old: OutboxName, new: OutboxName) -> bool:
    """Return whether the table itself has the new name already."""
    if old.table == new.table:
        raise ConfigurationError(f"{old} has this name. Give another one")
    is_old = bool(read_columns(connection, old))
    state = read_columns(connection, old.sibling("state")) or read_columns(connection, old.sibling("leader"))
    if "schema_version" not in state:
        raise OutboxMissingError(f"there is no outbox {old}. Give the name that it has, and the one that it gets")
    if not is_old and new.table not in [each.table for each in _moved(connection, old, was=old)]:
        raise ConfigurationError(
            f"there is no table {old}, and {new} is not what it was renamed to. Restore the table, or give its name"
        )
    owner, may_change = Statements(connection, old).row("init.owner", {"table": (old if is_old else new).text()})
    if not may_change:
        raise ConfigurationError(
            f"{old} belongs to {owner}, for whom {connection.info.user} may not act. Run this as its owner"
        )
    return not is_old


def _require_no_leader(statements: Statements, old: OutboxName, silence: float) -> None:
    if not read_columns(statements.connection, old.sibling("shard")):
        return  # tables of an early release
    if leaders := statements.rows("renaming.leaders", {"seconds": silence}):
        names = " and ".join(member for (member,) in leaders)
        raise ConfigurationError(f"{names} leads {old}, and knows it by that name. Stop its harvesters first")


def _enter(connection: psycopg.Connection[Any], old: OutboxName, new: OutboxName, on_behalf_of: str | None) -> None:
    if "schema_version" not in read_columns(connection, new.sibling("state")):
        return  # tables of an early release
    statements = Statements(connection, new)
    if statements.row("init.schema_version", table=new.beside("state")) != (SCHEMA_VERSION,):
        return  # a migration may write the list of actions again
    statements.execute("trail.allow_rename")
    enter(connection, new, "rename", on_behalf_of=on_behalf_of, matched=f"{old.table} to {new.table}")


class _Renaming:
    """The single steps, within the caller's transaction. Each leaves out what is not there."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str, old: OutboxName, new: OutboxName) -> None:
        self._statements = Statements(connection, old)
        self._schema = schema
        self._old = old
        self._new = new
        self._beside = {f"{old.table}_{suffix}": f"{new.table}_{suffix}" for suffix in _RELATIONS}

    def require_free(self, *, is_renamed: bool) -> None:
        """Raise ConfigurationError if one of the new names is taken."""
        wanted = [*self._beside.values(), *([] if is_renamed else [self._new.table])]
        functions = [f"{self._new.table}_{suffix}" for suffix in _FUNCTIONS]
        if taken := [*self._there("there", wanted), *self._there("functions", functions)]:
            raise ConfigurationError(f"{self._new.table} can't be its name: {taken[0]} is there already. Give another")

    def rename_table(self, old: str, new: str) -> None:
        self._rename("table", old, new)

    def rename_what_is_beside(self) -> None:
        """Rename the tables, the view, the archive's partitions, sequences and indexes."""
        tables = self._there("there", [*self._beside])
        # The outbox's own sequence and indexes are found by its name, which is the new one by now.
        values = {"schema": self._schema, "names": [self._new.table, *tables], "prefix": f"{self._old.table}_"}
        parts = self._statements.rows("renaming.parts", values)
        for table in tables:
            self._rename("table", table, self._beside[table])
        slots = dict(zip(index_names(self._old), index_names(self._new), strict=True))
        fresh = {name: slots.get(name, self._new.table + name.removeprefix(self._old.table)) for name, _ in parts}
        taken = set(self._there("there", [*fresh.values()]))
        for name, is_index in parts:
            if len(fresh[name].encode()) <= MAX_IDENTIFIER_BYTES and fresh[name] not in taken:
                self._rename("index" if is_index else "table", name, fresh[name])

    def rename_staging(self) -> None:
        """Rename the schema in which jobs stage."""
        old, new = (name.staging_schema(self._schema) for name in (self._old, self._new))
        if self._statements.row("init.schema_exists", {"schema": old})[0]:
            self._statements.execute("renaming.rename_schema", old=identifier(old), new=identifier(new))

    def rename_functions(self) -> bool:
        """Rename the functions; return whether one of them stashes."""
        stash = f"{self._old.table}_stash"
        found = self._there("functions", [f"{self._old.table}_{suffix}" for suffix in _FUNCTIONS])
        for name in found:
            self._rename("function", name, self._new.table + name.removeprefix(self._old.table))
        return stash in found

    def _rename(self, kind: str, old: str, new: str) -> None:
        parts = {"old": identifier(self._schema, old), "new": identifier(new)}
        self._statements.execute(f"renaming.rename_{kind}", **parts)

    def _there(self, statement: str, names: list[str]) -> list[str]:
        rows = self._statements.rows(f"renaming.{statement}", {"schema": self._schema, "names": names})
        return [name for (name,) in rows]


def _moved(
    connection: psycopg.Connection[Any],
    name: OutboxName,
    *,
    was: OutboxName | None = None,
    to: OutboxName | None = None,
) -> list[OutboxName]:
    """Return what outboxes were called whose table is this one, or what this outbox's table is called."""
    rows = Statements(connection, name).rows("renaming.moved", {"schema": schema_of(connection, name)})
    if was is not None:
        return [replace(was, table=present) for before, present in rows if before == was.table]
    return [replace(name, table=before) for before, present in rows if to is not None and present == to.table]


def _placed(connection: psycopg.Connection[Any], name: OutboxName) -> OutboxName:
    """Return the name with its schema, which may be that of the tables beside it: its own may be gone."""
    for each in (name, name.sibling("state"), name.sibling("leader")):
        found = located(connection, each)
        if read_columns(connection, found):
            return replace(name, found_in=found.found_in)
    return located(connection, name)


def schema_of(connection: psycopg.Connection[Any], name: OutboxName) -> str:
    """Return the schema of an outbox, or of what is left of it; else the one in which it would be made."""
    if (schema := name.schema or name.found_in) is not None:
        return schema
    tables = [name.text(suffix) for suffix in ("", "state", "leader")]
    [schema] = Statements(connection, name).row("renaming.schema", {"tables": tables})
    return str(schema)
