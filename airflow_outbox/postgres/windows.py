"""Exactly once: read the records that became visible in a window, and purge what is published.

`sql/windows.sql` has the statements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack, cast
from uuid import UUID

import psycopg
from psycopg import sql

from airflow_outbox.errors import PostgresError
from airflow_outbox.postgres.changes import Changes
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.purging import middle, purging_parts
from airflow_outbox.postgres.slots import cursors_after, slot, slots_values
from airflow_outbox.postgres.statements import FrequentStatement
from airflow_outbox.postgres.transaction_id_trigger import is_guarded
from airflow_outbox.postgres.undeleted import refusal_of
from airflow_outbox.values.fence import Purged
from airflow_outbox.values.pages import Cursors, Length, OutboxRow, Page, PageBounds, PageSize, PageSnapshot
from airflow_outbox.values.records import Snapshot

if TYPE_CHECKING:
    from airflow_outbox.postgres.table import OutboxTable

_MOST_OTHERS = 32  # each row of the range is compared with every one of them


class WindowStatements:
    """The statements of exactly once over one connection. Methods raise PostgresError."""

    def __init__(self, table: OutboxTable) -> None:
        """The records of an outbox, over the same connection."""
        self._table = table
        self._page_size = PageSize()

    def first_reading(self, watermark: Snapshot | None, *, seconds: float) -> PageSnapshot:
        """Return where a term begins to read: at the first record of the whole table.

        Dead rows before that record may hide it for this many seconds. Then the term begins after the `watermark`: no
        record is from a transaction that the watermark sees, where the trigger against loaded rows is on.
        """
        try:
            with translated(self._table.name), self._table.connection.transaction():
                self._table.row("windows.look_briefly", milliseconds=max(1, int(1000 * seconds)))
                if self._table.slots is None:
                    self._table.row("windows.lowest_id")
                else:
                    self._table.row("windows.lowest_of_slots", {"slot": self._slot}, slots=list(self._table.slots))
        except PostgresError as error:
            if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                raise
            if watermark is not None and is_guarded(self._table.connection, self._table.name):
                return PageSnapshot(after=watermark)
        return PageSnapshot()

    def read(
        self, reading: PageSnapshot, *, wait: float = 0.0, interval: float = 0.0, **bounds: Unpack[PageBounds]
    ) -> Page:
        """Return the next page of a window.

        If a new window would be empty, wait this many seconds for one that is not, and look every `interval` seconds.
        """
        if (nothing := self._changes.nothing_since(reading, wait=wait, interval=interval)) is not None:
            return nothing
        page = self._read(reading, **bounds)
        self._changes.seen(page)
        return page

    def _read(self, reading: PageSnapshot, *, max_records: int, max_bytes: int, transaction_ids: bool) -> Page:
        values = {
            "after": None if reading.after is None else str(reading.after),
            "within": None if reading.within is None else str(reading.within),
            "above": reading.above,
            "outbox": self._table.name.text(),
            "most_bytes": self._table.most_bytes,
        }
        reads_on = reading.after is None or reading.within is not None
        statement = ("read" if reading.cursors is None else "read_slots") + ("_on" if reads_on else "_window")
        reads = self.readings[statement, transaction_ids]
        while True:
            records, share = self._page_size.shares(max_records=max_records, max_bytes=max_bytes)
            asked = () if reading.cursors is None else reading.cursors[:records]
            values |= slots_values(asked, records=records)
            with translated(self._table.name):
                cursor = reads.execute({**values, "max_records": records, "max_size": share}, binary=True)
                _, seen, *_ = cast("tuple[Any, ...]", cursor.fetchone())
                found = cast("list[OutboxRow]", cursor.fetchall())
            rows = self._page_size.fitting(found, share=share, max_bytes=max_bytes)
            if rows or not found:
                break
        cursors: Cursors | None = None
        complete = len(rows) < records and len(rows) == len(found)
        if reading.cursors is not None:
            cursors = cursors_after(asked, found, kept=len(rows), records=records) + reading.cursors[len(asked) :]
            rows, complete = [cast("OutboxRow", row[:-1]) for row in rows], not cursors
        snapshot, written, flushed, table_oid, file_number, drawn = seen.split(" ")
        return Page(
            rows=rows,
            snapshot=Snapshot.parse(snapshot),
            complete=complete,
            written=int(written),
            flushed=int(flushed),
            table_oid=int(table_oid),
            file_number=int(file_number),
            last_drawn=int(drawn),
            cursors=cursors,
        )

    def lengths(self, transaction_ids: Collection[int]) -> dict[int, Length]:
        """Return how many records each of these transactions has in the outbox, and the last one's id."""
        rows = self._table.statements.rows(
            "windows.lengths", {"transaction_ids": [str(each) for each in transaction_ids]}
        )
        return {transaction_id: Length(records, last_id) for transaction_id, records, last_id in rows}

    def flush(self, position: int) -> int:
        """Wait until Postgres' log is durable up to a position, also on the standbys that commits wait for. Return how
        far it is durable.
        """
        flushed = self._number("windows.flushed", durable=self._table.statements.composed("windows.durable"))
        return flushed if flushed >= position else self._number("windows.flush")

    def purge_published(
        self,
        view: UUID,
        ids: Sequence[int],
        snapshot: Snapshot,
        *,
        watermark: Snapshot | None = None,
        batch: int | None = None,
    ) -> Purged:
        """Delete, or archive, published records that the snapshot sees, and announce the watermark, unless it is None.

        `batch` is the records' number in the ledger. Those that Postgres won't delete are noted as undeleted. Raises
        FencedError.
        """
        undeleted, seen = self._table.undeleted, str(snapshot)
        announced = None if watermark is None else str(watermark)

        def delete(ids: Sequence[int]) -> Sequence[int]:
            return self._kept(ids, self._purge(view, ids, snapshot=seen, batch=batch)[1], seen)

        try:
            _, deleted, flushed, age, _ = self._purge(view, ids, snapshot=seen, batch=batch, watermark=announced)
        except PostgresError as error:
            if refusal_of(error) is None:
                raise
            undeleted.note(view, undeleted.delete_apart(ids, delete), self._mine, snapshot=seen)
            row = self._table.row("windows.announce", self._table.announcing, view=view, watermark=announced)
            _, flushed, _ = self._table.fenced_unless(row)
            return Purged(int(flushed))
        undeleted.note(view, undeleted.kept(self._kept(ids, deleted, seen)), self._mine, snapshot=seen)
        return Purged(int(flushed), age)

    def _purge(
        self, view: UUID, ids: Sequence[int], *, snapshot: str, batch: int | None = None, watermark: str | None = None
    ) -> tuple[Any, ...]:
        values = {"snapshot": snapshot, "watermark": watermark, "batch": batch, "sample": middle(ids)}
        between = _between(ids)
        if between is None:
            row = self._table.frequent_row(self._purging_one_by_one, view=view, ids=list(ids), **values)
        else:
            row = self._table.frequent_row(self._purging_between, view=view, **between, **values)
        return self._table.fenced_unless(row)

    def _kept(self, ids: Sequence[int], deleted: int, snapshot: str) -> list[int]:
        """Return the records that are still there. One that is gone may have been deleted before: by an earlier term,
        or by somebody else.
        """
        if deleted == len(ids):
            return []
        rows = self._table.statements.rows("windows.kept", {"ids": list(ids), "snapshot": snapshot})
        return [identity for (identity,) in rows]

    @cached_property
    def _mine(self) -> sql.Composable:
        return self._table.statements.composed("parked.visible")

    @cached_property
    def _purging_one_by_one(self) -> FrequentStatement:
        return self._purging("windows.ids_one_by_one")

    @cached_property
    def _purging_between(self) -> FrequentStatement:
        return self._purging("windows.ids_between")

    def _purging(self, those_ids: str) -> FrequentStatement:
        statements = self._table.statements
        return statements.frequent(
            "windows.purge_published",
            **purging_parts(self._table),
            **self._table.announcing,
            those_ids=statements.composed(those_ids),
        )

    @property
    def _slot(self) -> sql.Composable:
        return slot(self._table.columns, "record")

    @cached_property
    def _changes(self) -> Changes:
        statements, connection = self._table.statements, self._table.connection
        look = statements.composed("windows.look", durable=statements.composed("windows.durable"))
        return Changes(connection, look.as_bytes(connection))

    @cached_property
    def readings(self) -> Mapping[tuple[str, bool], FrequentStatement]:
        """The statements that read a page, by their names and by whether they read transaction ids, too."""
        first = {
            "durable": self._table.statements.composed("windows.durable"),
            "table": self._table.statements.composed("windows.table_read"),
        }
        wanted = {True: sql.SQL("transaction_id::text::bigint"), False: sql.SQL("NULL::bigint")}
        return {
            (statement, asked): self._table.statements.frequent(
                f"windows.{statement}",
                partition=self._table.partition,
                key=self._table.key,
                transaction_id=transaction_id,
                measured=self._table.statements.composed("windows.measured"),
                last_drawn=self._table.statements.composed("windows.last_drawn"),
                slot=self._slot,
                fresh=self._table.fresh,
                **first,
            )
            for statement in ("read_window", "read_on", "read_slots_window", "read_slots_on")
            for asked, transaction_id in wanted.items()
        }

    def _number(self, statement: str, **parts: sql.Composable) -> int:
        return int(cast("tuple[int]", self._table.row(statement, parts))[0])


def _between(ids: Sequence[int]) -> dict[str, Any] | None:
    """Return ids as the range that they lie in, and the others in it; None when there are too many others."""
    if not ids:
        return None
    first, last = min(ids), max(ids)
    count = last - first + 1 - len(ids)
    if count > _MOST_OTHERS:
        return None
    others = sorted(set(range(first, last + 1)).difference(ids)) if count else []
    return {"first": first, "last": last, "others": others}
