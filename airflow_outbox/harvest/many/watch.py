"""The looks at all outboxes of a list, over one connection: which are there, which have records, how those that rest
are. Everything here runs in one thread, one look after the other. A failure is that of one outbox only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg

from airflow_outbox.errors import OutboxError, PostgresUnreachableError
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.resting import Looks, Rest, RestingTable, TakenUp, begin_looking
from airflow_outbox.postgres.table import OutboxTable

Failures = Mapping[OutboxName, OutboxError]


def opened(data_source: str) -> psycopg.Connection[Any]:
    """Return a connection for these looks. Raises PostgresError."""
    connection = connect(data_source, purpose="watch", waits_for_standbys=False)
    begin_looking(connection)
    return connection


def identities(
    connection: psycopg.Connection[Any], names: Sequence[OutboxName]
) -> Mapping[OutboxName, UUID | OutboxError]:
    """Return the outboxes' ids, or why they can't be harvested. Raises PostgresUnreachableError."""
    found: dict[OutboxName, UUID | OutboxError] = {}
    for name in names:
        try:
            found[name] = OutboxTable(connection, name).identity().outbox_id
        except PostgresUnreachableError:
            raise
        except OutboxError as error:
            found[name] = error
    return found


def waiting(
    connection: psycopg.Connection[Any], looks: Looks, tables: Sequence[RestingTable]
) -> tuple[set[OutboxName], Failures]:
    """Return the outboxes with records, and those that could not be looked at. Raises PostgresUnreachableError."""
    try:
        seen = looks.with_records(connection, tables)
    except PostgresUnreachableError:
        raise
    except OutboxError:  # of any of them: each is looked at by itself
        return _one_by_one(connection, tables)
    return {table.name for table, has_records in zip(tables, seen, strict=True) if has_records}, {}


def _one_by_one(
    connection: psycopg.Connection[Any], tables: Sequence[RestingTable]
) -> tuple[set[OutboxName], Failures]:
    found, failures = set[OutboxName](), dict[OutboxName, OutboxError]()
    for table in tables:
        try:
            if table.has_records(connection):
                found.add(table.name)
        except PostgresUnreachableError:
            raise
        except OutboxError as error:
            failures[table.name] = error
    return found, failures


def rested(
    connection: psycopg.Connection[Any], held: Sequence[tuple[RestingTable, UUID, bool]]
) -> Mapping[OutboxName, TakenUp | Rest | OutboxError]:
    """Keep the outboxes that rest under these views, and first take up those that are not held yet (False). Those that
    others hold are left alone. Raises PostgresUnreachableError.
    """
    found: dict[OutboxName, TakenUp | Rest | OutboxError] = {}
    for table, view, is_held in held:
        try:
            taken = TakenUp(True, None) if is_held else table.take_up(connection, view)
            found[table.name] = table.rest(connection, view) if taken.is_ours else taken
        except PostgresUnreachableError:
            raise
        except OutboxError as error:
            found[table.name] = error
    return found


def let_go(connection: psycopg.Connection[Any], held: Sequence[tuple[RestingTable, UUID]]) -> None:
    """Leave outboxes to other members, as far as that is possible. Raises PostgresUnreachableError."""
    for table, view in held:
        try:
            table.let_go(connection, view)
        except PostgresUnreachableError:
            raise
        except OutboxError:
            continue
