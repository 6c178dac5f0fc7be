"""The parts that all purges share: what becomes of the deleted rows, and how old they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from psycopg import sql

from airflow_outbox.postgres.kept_columns import archived

if TYPE_CHECKING:
    from airflow_outbox.postgres.table import OutboxTable


def purging_parts(table: OutboxTable) -> Mapping[str, sql.Composable]:
    """Return the parts of a purging statement that decide what becomes of deleted rows, and what is told of them."""
    age = table.statements.composed("windows.age")
    if not table.archives:
        return {"returned": sql.SQL("RETURNING 1"), "archived": sql.SQL(""), "age": age}
    return {"returned": sql.SQL("RETURNING *"), "archived": archived(table.name, table.columns), "age": age}


def middle(ids: Sequence[int]) -> int | None:
    """Return the record whose age stands for all of them."""
    return ids[len(ids) // 2] if ids else None
