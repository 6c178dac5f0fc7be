"""Slots in Postgres: how a statement reckons a record's slot, and the indexes by which a shard reads its own.

`sql/slots.sql` says what a slot is.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import sql

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.columns import Column, read_columns
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.names import MAX_IDENTIFIER_BYTES, OutboxName, identifier
from airflow_outbox.postgres.statements import Statements, composed
from airflow_outbox.values.pages import ID, Cursors

SLOTS = 64
_INDEXED = ("transaction_id", "id")


def slot(columns: Mapping[str, Column], of: str = "") -> sql.Composed:
    """Return the part of a statement that reckons a row's slot. `of` names the row, where others have such columns."""
    return slot_of(bytes_keys=columns["kafka_key"].is_bytes, of=of)


def slot_of(*, bytes_keys: bool, of: str = "") -> sql.Composed:
    """Return the same, for an outbox whose keys are bytes or text."""
    md5_type = sql.SQL("pg_catalog.bytea" if bytes_keys else "pg_catalog.text")
    qualifier = sql.SQL(".").join([sql.Identifier(of), sql.SQL("")]) if of else sql.SQL("")
    return composed("slots.slot", md5_type=md5_type, of=qualifier)


def own(columns: Mapping[str, Column], of: str = "") -> sql.Composed:
    """Return the part of a statement about parked records that leaves the shard's own."""
    return composed("slots.own", slot=slot(columns, of))


def slots_of(shard: int, shards: int) -> list[int] | None:
    """Return the slots of one of this many shards. Every slot is one shard's. None: all, which a single shard has."""
    return None if shards == 1 else list(range(shard, SLOTS, shards))


def slots_values(asked: Cursors, *, records: int) -> dict[str, Any]:
    """Return the values of a statement that reads from these slots at most this many records in all."""
    return {
        "slots": [number for number, _ in asked],
        "aboves": [above for _, above in asked],
        "slot_records": records // max(1, len(asked)),
    }


def cursors_after(asked: Cursors, found: Sequence[tuple[Any, ...]], *, kept: int, records: int) -> Cursors:
    """Return the slots that have more, and where to go on in each, after a page of the slots `asked`.

    The first `kept` of the rows `found` are in the page. Each ends with its slot.
    """
    most = records // max(1, len(asked))
    last: dict[int, int] = {}
    counts: Counter[int] = Counter()
    for number, rows in groupby(found[:kept], itemgetter(-1)):
        ids = [row[ID] for row in rows]
        last[number], counts[number] = ids[-1], len(ids)
    cut = {row[-1] for row in found[kept:]}
    return tuple(
        (number, last.get(number, above)) for number, above in asked if counts[number] >= most or number in cut
    )


def missing_indexes(connection: psycopg.Connection[Any], name: OutboxName) -> list[str]:
    """Return the columns whose index with the slot is not there, or not complete. Raises PostgresError."""
    name = located(connection, name)
    found = _indexes(connection, name)
    return [column for column in _INDEXED if not any(is_valid for _, is_valid in found.get(column, ()))]


def make_indexes(connection: psycopg.Connection[Any], name: OutboxName) -> list[str]:
    """Make the indexes that are missing, while others write. Return what was done, in words.

    Not in a transaction. Takes as long as the table is large, and until transactions that are open now have ended.
    Raises ConfigurationError for a table without the columns that it takes, PostgresError.
    """
    name = located(connection, name)
    columns = read_columns(connection, name)
    if "transaction_id" not in columns:
        raise ConfigurationError(
            f"{name} has no column transaction_id, which more than one shard needs. `airflow-outbox init "
            "--transaction-id` adds it"
        )
    statements = Statements(connection, name)
    [schema, _] = statements.row("init.where_it_is", {"table": name.text()})
    done = []
    for column in missing_indexes(connection, name):
        for index, _ in _indexes(connection, name).get(column, ()):
            statements.execute("slots.drop_index", index=identifier(schema, index))
        parts = {"index": identifier(_index_name(name, column)), "column": sql.Identifier(column)}
        statements.execute("slots.index", slot=slot(columns), **parts)
        done.append(f"made an index of {name} by slot and {column}")
    return done


def index_names(name: OutboxName) -> list[str]:
    """Return what the indexes by slot are called, there or not."""
    return [_index_name(name, column) for column in _INDEXED]


def _index_name(name: OutboxName, column: str) -> str:
    """A name of its own, however long the outbox's is."""
    suffix = f"_slot_{column}"
    if len((name.table + suffix).encode()) <= MAX_IDENTIFIER_BYTES:
        return name.table + suffix
    digest = hashlib.sha256(name.table.encode()).hexdigest()[:8]
    room = MAX_IDENTIFIER_BYTES - len(suffix) - len(digest) - 1
    return f"{name.table.encode()[:room].decode(errors='ignore')}_{digest}{suffix}"


def _indexes(connection: psycopg.Connection[Any], name: OutboxName) -> dict[str, list[tuple[str, bool]]]:
    """Return the outbox's indexes by slot, with whether each is complete, by their second column."""
    wanted = {_index_name(name, column): column for column in _INDEXED}
    found: dict[str, list[tuple[str, bool]]] = {}
    for index, is_valid in Statements(connection, name).rows("slots.indexes", {"outbox": name.text()}):
        if index in wanted:
            found.setdefault(wanted[index], []).append((index, is_valid))
    return found
