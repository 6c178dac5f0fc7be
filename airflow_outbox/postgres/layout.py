"""Layouts in Postgres: how many shards an outbox has. `sql/layout.sql` has the statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any
from uuid import UUID, uuid4

import psycopg

from airflow_outbox.errors import ConfigurationError, FencedError, OutboxMissingError
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.slots import missing_indexes, slots_of
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.records import Snapshot


def read_layout(connection: psycopg.Connection[Any], name: OutboxName) -> Layout:
    """Return the present layout. Raises OutboxMissingError, PostgresError."""
    name = located(connection, name)
    row = Statements(connection, name).row("layout.layout")
    if row is None:
        raise OutboxMissingError(f"{name.text('state')} is empty. Run `airflow-outbox init`")
    return Layout(*row)


def known_shards(connection: psycopg.Connection[Any], name: OutboxName) -> int:
    """Return how many shards there are, with those that have no slots in this layout. Raises PostgresError."""
    [(known,)] = Statements(connection, located(connection, name)).rows("layout.known")
    return int(known)


def was_led(connection: psycopg.Connection[Any], name: OutboxName) -> bool:
    """Whether anybody has ever led a shard. Raises PostgresError."""
    name = located(connection, name)
    with translated(name), connection.transaction():
        return any(row.view is not None for row in Statements(connection, name).named_rows("layout.lock"))


def ask_layout(connection: psycopg.Connection[Any], name: OutboxName, *, shards: int | None) -> None:
    """Ask the leader of shard 0 for this many shards; None withdraws that. If nobody ever led, they are there at once.

    The indexes and the shards' topics have to be there, and every cluster has to count. Raises ConfigurationError,
    PostgresError.
    """
    name = located(connection, name)
    if shards is not None and shards > 1 and (missing := missing_indexes(connection, name)):
        raise ConfigurationError(
            f"{name} has no index by slot and {' and '.join(missing)}. `airflow-outbox reshard {shards}` makes it"
        )
    statements = Statements(connection, name)
    with translated(name), connection.transaction():
        if shards is not None:
            statements.execute("layout.add_shards", {"shards": shards})
            rows = statements.named_rows("layout.lock")  # the clusters change only when all shards are locked
            require_all_count(connection, name)
            if all(row.view is None for row in rows):
                _write(statements, shards)
                return
        statements.execute("layout.ask", {"shards": shards})


def require_all_count(connection: psycopg.Connection[Any], name: OutboxName) -> None:
    """Raise ConfigurationError while a cluster is owed records, which are kept by shard. Raises PostgresError."""
    name = located(connection, name)
    if owed := [cluster for (cluster,) in Statements(connection, name).rows("layout.owed")]:
        raise ConfigurationError(
            f"cluster {' and '.join(owed)} does not count, and lacks what was published in this layout. Attach it "
            "first: `airflow-outbox clusters attach NAME`"
        )


def write_layout(
    connection: psycopg.Connection[Any], name: OutboxName, *, views: Mapping[int, UUID], shards: int
) -> dict[int, UUID]:
    """Give the outbox this many shards, and return their fresh views. `views` has, for each shard with slots, the view
    under which the caller leads it.

    Each has nothing under way, and all that it has committed is purged. Raises FencedError when somebody else leads one
    of them, PostgresError.
    """
    name = located(connection, name)
    with translated(name), connection.transaction():
        return _write(Statements(connection, name), shards, views=views)


def _write(statements: Statements, shards: int, *, views: Mapping[int, UUID] | None = None) -> dict[int, UUID]:
    rows = statements.named_rows("layout.lock")
    present = [row for row in rows if row.slots != []]
    if views is not None and views != {row.shard: row.view for row in present}:
        raise FencedError(f"{statements.outbox}: another view has taken over a shard")
    if len(rows) < shards:
        raise OutboxMissingError(
            f"{statements.outbox.text('shard')} has {len(rows)} rows, but {shards} shards are wanted. Run "
            f"`airflow-outbox reshard {shards}`"
        )
    [layout, *_] = statements.row("layout.layout")
    values = {
        "layout": layout + 1,
        "watermark": _met(row.watermark for row in present),
        "highest_id": max(row.highest_id for row in rows),
        "delivery": rows[0].delivery,
    }
    fresh = {row.shard: uuid4() for row in rows}
    for shard, view in fresh.items():
        slots = slots_of(shard, shards) if shard < shards else []
        statements.execute("layout.write_shard", {**values, "shard": shard, "view": view, "slots": slots})
    statements.execute("layout.write", {"layout": layout + 1, "shards": shards})
    return {shard: view for shard, view in fresh.items() if shard < shards}


def _met(watermarks: Iterable[str | None]) -> str | None:
    """Return the snapshot that sees what all see: all that any of them has called published stays so."""
    known = list(watermarks)
    if None in known:
        return None
    met = reduce(Snapshot.meet, (Snapshot.parse(watermark) for watermark in known if watermark is not None))
    return str(met)
