"""At least once: mark records, and purge or reset those that a view has marked. `sql/marks.sql` has the statements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from psycopg import sql

from airflow_outbox.errors import PostgresError
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.purging import middle, purging_parts
from airflow_outbox.postgres.statements import FrequentStatement
from airflow_outbox.postgres.undeleted import refusal_of
from airflow_outbox.values.records import MarkedRecord

if TYPE_CHECKING:
    from airflow_outbox.postgres.table import OutboxTable


class MarkStatements:
    """The statements of at least once over one connection. Methods raise PostgresError."""

    def __init__(self, table: OutboxTable) -> None:
        """The records of an outbox, over the same connection."""
        self._table = table

    def mark(self, view: UUID, *, max_records: int, max_bytes: int, only_marked: bool = False) -> list[MarkedRecord]:
        """Claim and return the next records by id; none when nothing is due. `only_marked` limits them to those that
        another view has marked. Raises FencedError.
        """
        bounds = {"max_records": max_records, "max_bytes": max_bytes, "only_marked": only_marked}
        bounds["most_bytes"] = self._table.most_bytes
        with translated(self._table.name):
            cursor = self._mark.execute({"view": view, "shard": self._table.shard, **bounds}, binary=True)
            records = [MarkedRecord._make(row) for row in cursor]
        if not records:
            self._table.require_fence(view)
        return records

    def purge(self, view: UUID, ids: Sequence[int]) -> float | None:
        """Delete, or archive, published records of this view. Return how many seconds ago the one in the middle was
        stashed (None: nobody knows). Those that Postgres won't delete are noted as undeleted. Raises FencedError.
        """
        undeleted = self._table.undeleted

        def delete(ids: Sequence[int]) -> Sequence[int]:
            return self._kept(view, ids, self._purge(view, ids)[1])

        try:
            _, deleted, age = self._purge(view, ids)
        except PostgresError as error:
            if refusal_of(error) is None:
                raise
            undeleted.note(view, undeleted.delete_apart(ids, delete), self._mine)
            return None
        undeleted.note(view, undeleted.kept(self._kept(view, ids, deleted)), self._mine)
        return cast("float | None", age)

    def _purge(self, view: UUID, ids: Sequence[int]) -> tuple[Any, ...]:
        row = self._table.frequent_row(self._purging, view=view, ids=list(ids), batch=None, sample=middle(ids))
        return self._table.fenced_unless(row)

    def _kept(self, view: UUID, ids: Sequence[int], deleted: int) -> list[int]:
        """Return the records that are still there. One that is gone may have been deleted by somebody else."""
        if deleted == len(ids):
            return []
        rows = self._table.statements.rows("marks.kept", {"view": view, "ids": list(ids)})
        return [identity for (identity,) in rows]

    def reset(self, view: UUID, ids: Sequence[int]) -> None:
        """Remove this view's mark from records that were not published. Raises FencedError."""
        self._table.fenced_unless(self._table.row("marks.reset", view=view, ids=list(ids)))

    def holds_marks(self) -> bool:
        """Whether any record carries a mark. Looks at all records, if need be."""
        return bool(cast("tuple[bool]", self._table.row("marks.holds_marks"))[0])

    @cached_property
    def _mine(self) -> sql.Composable:
        return self._table.statements.composed("parked.marked")

    @cached_property
    def _purging(self) -> FrequentStatement:
        return self._table.statements.frequent("marks.purge", **purging_parts(self._table))

    @cached_property
    def _mark(self) -> FrequentStatement:
        return self._table.statements.frequent(
            "marks.mark",
            partition=self._table.partition,
            key=self._table.key,
            measured=self._table.statements.composed("windows.measured"),
            fresh=self._table.fresh,
        )
