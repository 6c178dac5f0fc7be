"""The trigger on the application's table, and its function beside the outbox: see `sql/debezium.sql`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg import sql

from airflow_outbox.debezium.rendering import Rendered, part
from airflow_outbox.debezium.table import SourceTable
from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements, composed

_MARK = "airflow-outbox debezium"
_MAX_IDENTIFIER_BYTES = 63


@dataclass(frozen=True, slots=True)
class Installed:
    """A trigger that stashes into an outbox.

    `settings` are the connector's that it was made of, and `publication` is the one that the table was taken out of.
    """

    table: OutboxName
    function: OutboxName
    body: str
    settings: Mapping[str, str]
    publication: str | None
    is_on: bool
    is_own: bool


@dataclass(frozen=True, slots=True)
class OutboxPlace:
    """The outbox: its name with its schema, its owner as Postgres quotes it, and whether its key may be null."""

    name: OutboxName
    owner: sql.SQL
    may_lack_key: bool

    @property
    def escape(self) -> sql.Composable:
        """The function that writes strange texts as JSON."""
        return self.name.beside("escape")

    @property
    def expand(self) -> sql.Composable:
        """The function that expands JSON."""
        return self.name.beside("expand")

    @property
    def expand_with_schema(self) -> sql.Composable:
        """The function that expands JSON, and tells its schema."""
        return self.name.beside("expand_s")

    def expansion(self) -> dict[str, sql.Composable]:
        """The parts of statements that name these functions, and those that they call."""
        own = {"expand_value": self.name.beside("expand_v"), "expand_schema": self.name.beside("expand_t")}
        return {"escape": self.escape, "expand": self.expand, "expand_s": self.expand_with_schema, **own}


def find_outbox(connection: psycopg.Connection[Any], name: OutboxName) -> OutboxPlace:
    """Return where the outbox is. Raises OutboxMissingError, PostgresError."""
    name = located(connection, name)
    row = Statements(connection, name).row("debezium.outbox_place", {"outbox": name.text()})
    if row is None:
        raise OutboxMissingError(f"there is no table {name}. Run `airflow-outbox init`")
    schema, owner, may_lack_key = row
    return OutboxPlace(name.located(schema), sql.SQL(cast("Any", owner)), may_lack_key)


def installed(connection: psycopg.Connection[Any], place: OutboxPlace) -> list[Installed]:
    """Return the triggers that stash into an outbox. Raises PostgresError."""
    rows = Statements(connection, place.name).named_rows(
        "debezium.triggers", {"outbox": place.name.text(), "prefix": _prefix(place.name)}
    )
    found = []
    for row in rows:
        about = _about(row.comment)
        found.append(
            Installed(
                OutboxName(row.schema, row.table),
                OutboxName(row.function_schema, row.function),
                row.body,
                about.get("settings") or {},
                about.get("publication"),
                row.is_on,
                row.is_own,
            )
        )
    return found


def body_of(place: OutboxPlace, rendered: Rendered) -> str:
    """Return the text of the trigger's function."""
    return composed("debezium.body", place.name, **rendered.parts).as_string(None)


def make(
    connection: psycopg.Connection[Any],
    place: OutboxPlace,
    table: SourceTable,
    rendered: Rendered,
    *,
    settings: Mapping[str, str],
    publication: str | None,
    present: Installed | None,
) -> None:
    """Make the trigger, in the caller's transaction; where it is `present`, only its function is made again."""
    function = present.function if present else function_name(place.name, table.name)
    statements = Statements(
        connection, place.name, source=table.name.beside(""), function=function.beside(""), owner=place.owner
    )
    Statements(connection, place.name).execute("debezium_values.escaping", escape=place.escape, owner=place.owner)
    if rendered.expands:
        make_expansion(connection, place)
    about = json.dumps({"made by": _MARK, "settings": dict(settings), "publication": publication}, sort_keys=True)
    statements.execute("debezium.make_function", body=sql.Literal(body_of(place, rendered)), comment=sql.Literal(about))
    if present is None or not present.is_on:
        statements.execute("debezium.make_trigger")


def make_expansion(connection: psycopg.Connection[Any], place: OutboxPlace) -> None:
    """Make the functions that expand JSON, beside the outbox."""
    Statements(connection, place.name).execute(
        "debezium_values.expansion",
        owner=place.owner,
        json_key=part("json_string", text=sql.SQL("key"), escape=place.escape),
        json_plain=part("json_string", text=sql.SQL("plain"), escape=place.escape),
        json_name=part("json_string", text=sql.SQL("name"), escape=place.escape),
        **place.expansion(),
    )


def drop(connection: psycopg.Connection[Any], place: OutboxPlace, found: Installed, *, is_last: bool) -> None:
    """Take a trigger and its function away, in the caller's transaction; with the last one, what all need."""
    statements = Statements(connection, place.name, source=found.table.beside(""), function=found.function.beside(""))
    statements.execute("debezium.drop")
    if is_last:
        statements.execute("debezium.drop_expansion", **place.expansion())


def function_name(outbox: OutboxName, table: OutboxName) -> OutboxName:
    """Return the name of the function for a table: one outbox may have several tables."""
    digest = hashlib.sha256(table.text().encode()).hexdigest()[:8]
    return OutboxName(outbox.schema, f"{_prefix(outbox)}{digest}", outbox.found_in)


def _prefix(outbox: OutboxName) -> str:
    """How the functions of an outbox begin, with room for eight characters."""
    whole, room = f"{outbox.table}_debezium_", _MAX_IDENTIFIER_BYTES - 8
    if len(whole.encode()) <= room:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{whole.encode()[: room - 9].decode(errors='ignore')}{digest}_"


def _about(comment: str | None) -> Mapping[str, Any]:
    try:
        about = json.loads(comment or "")
    except ValueError:
        return {}
    return about if isinstance(about, dict) and about.get("made by") == _MARK else {}
