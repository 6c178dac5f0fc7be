"""A take-over: a new view is written into a shard's fence row, also where an old leader's statement holds that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg

from airflow_outbox.errors import LayoutChangedError, OutboxMissingError, PostgresError, TakeOverError
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.lock_holders import lock_holders

if TYPE_CHECKING:
    from airflow_outbox.postgres.table import OutboxTable


def write_view(table: OutboxTable, values: Mapping[str, Any]) -> None:
    """Write a view. `values` are those of the statement. If an old view's statement holds the row, end its backends.

    Raises as `OutboxTable.take_over`.
    """
    try:
        _write(table, values)
    except PostgresError as error:
        if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise
        table.row("fence.end_old_backends")
        _write_at_last(table, values)


def _write_at_last(table: OutboxTable, values: Mapping[str, Any]) -> None:
    try:
        _write(table, values)
    except PostgresError as error:
        shards = table.name.sibling("shard").table
        holders = {holder.who for holder in lock_holders(table.connection, table.name) if holder.table == shards}
        raise TakeOverError(
            f"{table.name.text('shard')}: the row of shard {table.shard} stays locked. End the transaction of "
            f"{' or '.join(sorted(holders)) or 'the session that holds it'}"
        ) from error


def _write(table: OutboxTable, values: Mapping[str, Any]) -> None:
    with translated(table.name), table.connection.transaction():
        table.statements.execute("connection.wait_briefly")
        row = table.row("fence.take_over", table.present, outbox=table.name.text(), **values)
    if row is None:
        if values["outbox_id"] not in (None, table.identity().outbox_id):
            raise OutboxMissingError(
                f"{table.name} is no longer outbox {values['outbox_id']}, for which this harvester was started. "
                "Restart the harvester"
            )
        if values["layout"] not in (None, table.identity().layout):
            raise LayoutChangedError(f"{table.name} has another number of shards now")
        if values["after"]:
            raise table.fenced()
        if table.row("fence.holds_fence", view=None) is not None:
            raise TakeOverError(
                f"{table.name}: shard {table.shard} can't be led now: the outbox gets another number of shards, or "
                "has fewer. `airflow-outbox status` shows its shards"
            )
        raise OutboxMissingError(
            f"{table.name.text('shard')} has no row for shard {table.shard}. Run `airflow-outbox init`"
        )
