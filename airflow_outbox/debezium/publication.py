"""Debezium's publication and its slot: where it stops reading a table, and how far it has come.

A publication's tables are looked up as they were when a row was written, however late Debezium reads it. So a
transaction that makes the trigger, and takes the table out of the publication, divides the rows exactly. Those before
it are Debezium's alone, those behind it are ours alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.names import OutboxName, identifier
from airflow_outbox.postgres.statements import Statements

MOST_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication, as far as one table is concerned.

    `has_table`: it publishes the table. `names_table`: it does so because it names it, and not because it has all
    tables, or all of a schema. `is_partial`: it names some of the columns or rows only.
    """

    name: str
    has_table: bool
    names_table: bool
    is_partial: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """Debezium's slot. `is_active`: Debezium reads it. `kept_bytes` of the log are kept for it."""

    name: str
    is_active: bool
    kept_bytes: int


def read_publication(
    connection: psycopg.Connection[Any], outbox: OutboxName, publication: str, table: OutboxName
) -> Publication | None:
    """Return the publication, None where there is none of that name. Raises PostgresError."""
    values = {"publication": publication, "source": table.text()}
    row = Statements(connection, outbox).row("debezium.publication", values)
    return None if row is None else Publication(publication, *row)


def take_out(
    connection: psycopg.Connection[Any], outbox: OutboxName, publication: Publication, table: OutboxName
) -> None:
    """Take the table out of the publication. Raises ConfigurationError where that can't be done, PostgresError."""
    if not publication.names_table:
        raise ConfigurationError(
            f"publication {publication.name} has {table} because it has all tables, or a whole schema: one alone can't "
            "be taken out. Give the connector a publication that names its tables (publication.autocreate.mode="
            "filtered and another publication.name), let it start, set publication.autocreate.mode=disabled, and try "
            "again"
        )
    if publication.is_partial:
        raise ConfigurationError(
            f"publication {publication.name} has only some columns or rows of {table}. Publish the table whole first, "
            "because `debezium drop` could not put the rest back"
        )
    _alter(connection, outbox, "debezium.unpublish", publication.name, table)


def put_back(connection: psycopg.Connection[Any], outbox: OutboxName, publication: str, table: OutboxName) -> None:
    """Let Debezium read the table again. Raises PostgresError."""
    _alter(connection, outbox, "debezium.publish", publication, table)


def _alter(
    connection: psycopg.Connection[Any], outbox: OutboxName, statement: str, publication: str, table: OutboxName
) -> None:
    parts = {"publication": identifier(publication), "source": table.beside("")}
    Statements(connection, outbox, **parts).execute(statement)


def read_slot(connection: psycopg.Connection[Any], outbox: OutboxName, slot: str) -> Slot | None:
    """Return the slot, None where there is none of that name for pgoutput in this database. Raises PostgresError."""
    row = Statements(connection, outbox).row("debezium.slot", {"slot": slot})
    return None if row is None else Slot(slot, *row)


def count_unread(
    connection: psycopg.Connection[Any], outbox: OutboxName, slot: str, publication: str, table: OutboxName
) -> int:
    """Return how many inserts into the table Debezium has not confirmed yet, at most MOST_COUNTED.

    Debezium may read meanwhile. It confirms what Kafka has about once a minute (`offset.flush.interval.ms`). The role
    needs REPLICATION, and the connection must be in autocommit. Raises PostgresError.
    """
    statements = Statements(connection, outbox)
    copy = f"airflow_outbox_{uuid4().hex}"
    statements.execute("debezium.copy_slot", {"slot": slot, "copy": copy})
    try:
        values = {"copy": copy, "publication": publication, "source": table.text(), "most": MOST_COUNTED}
        (count,) = statements.row("debezium.unread", values)
    finally:
        statements.execute("debezium.drop_slot", {"copy": copy})
    return int(count)
