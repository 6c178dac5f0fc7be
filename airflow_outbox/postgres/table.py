"""OutboxTable: a running outbox's only access to Postgres.

It runs the statements of `sql/fence.sql`, `windows.sql` and `marks.sql`, and turns Postgres' answers into this
project's values and errors. One OutboxTable uses one connection, and one thread at a time uses it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, cast
from uuid import UUID

import psycopg
from psycopg import sql

from airflow_outbox.errors import (
    FencedError,
    OutboxMissingError,
    PostgresError,
    SchemaVersionError,
    TakeOverError,
)
from airflow_outbox.postgres.columns import Column, read_columns
from airflow_outbox.postgres.connection import located, storable
from airflow_outbox.postgres.errors import replicated, translated
from airflow_outbox.postgres.kept_columns import archived
from airflow_outbox.postgres.loaded_rows import is_guarded
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.soundness import require_sound
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.fence import Fence, Flushed, History, LedgerPosition, OperatorRequest, Pulse
from airflow_outbox.values.pages import ANY_BYTES, Length, OutboxRow, Page, PageSize, PageSnapshot
from airflow_outbox.values.records import MarkedRecord, Snapshot

SCHEMA_VERSION = 8
SHARD = 0
_MOST_OTHERS = 32  # each row of the range is compared with every one of them


@dataclass(frozen=True, slots=True)
class Identity:
    """An outbox's id, and the incarnation its database is in."""

    outbox_id: UUID
    incarnation: int


class OutboxTable:
    """One outbox's statements over one connection. `archives` tells whether purged records are archived.

    Every method raises PostgresError when Postgres refuses or is gone.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        name: OutboxName,
        *,
        archives: bool = False,
        most_bytes: int = ANY_BYTES,
    ) -> None:
        """`most_bytes` is the largest record that Kafka's client takes. Larger ones come without value and headers."""
        self.connection = connection
        self.name = located(connection, name)
        self.archives = archives
        self.most_bytes = most_bytes
        self._page_size = PageSize()
        self._statements = Statements(connection, self.name)

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """Return the outbox's columns by name. Raises OutboxMissingError."""
        columns = read_columns(self.connection, self.name)
        if not columns:
            raise OutboxMissingError(
                f"there is no table {self.name}. Run `airflow-outbox init`, or correct outbox_table"
            )
        return columns

    def identity(self) -> Identity:
        """Return the outbox's id and incarnation. Raises OutboxMissingError, SchemaVersionError."""
        row = self._row("fence.identity")
        if row is None:
            raise OutboxMissingError(f"{self.name.text('state')} is empty. Run `airflow-outbox init`")
        outbox_id, version, incarnation = row
        if version != SCHEMA_VERSION:
            remedy = "Run `airflow-outbox init`" if version < SCHEMA_VERSION else "Install a newer airflow-outbox"
            raise SchemaVersionError(
                f"{self.name} is at schema version {version}, but this release knows {SCHEMA_VERSION}. {remedy}"
            )
        return Identity(outbox_id, incarnation)

    def require_sound(self) -> None:
        """Raise ConfigurationError unless the tables are sound."""
        require_sound(self.connection, self.name)

    def backend(self) -> dict[str, Any]:
        """Return this connection's backend, as take_over() wants it."""
        row = self._row("fence.backend")
        return cast("dict[str, Any]", row[0] if row else {})

    def take_over(
        self,
        view: UUID,
        backends: Sequence[Mapping[str, Any]],
        *,
        member: str,
        after: Collection[UUID] = (),
        outbox_id: UUID | None = None,
    ) -> Fence:
        """Write a new view into the fence row. If an old view's statement holds the row, end its backends.

        Operators know this member by `member`. `after`, unless empty, holds the only views to follow. `outbox_id`,
        unless None, is the only outbox to lead. Raises FencedError where the fence names none of those views. Raises
        TakeOverError when the row stays locked all the same, by a session that is no leader's.
        """
        values = {"view": view, "backends": json.dumps(list(backends)), "member": member, "after": list(after)}
        values["outbox_id"] = outbox_id
        try:
            self._take_over(values)
        except PostgresError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            self._row("fence.end_old_backends")
            self._take_over_at_last(values)
        return self.fence(view)

    def _take_over_at_last(self, values: Mapping[str, Any]) -> None:
        try:
            self._take_over(values)
        except PostgresError as error:
            raise TakeOverError(
                f"{self.name.text('shard')}: the row of shard {SHARD} stays locked. "
                "Look in pg_stat_activity for the session that holds it, and end it"
            ) from error

    def _take_over(self, values: Mapping[str, Any]) -> None:
        with translated(self.name), self.connection.transaction():
            self._statements.execute("connection.wait_briefly")
            row = self._row("fence.take_over", self._present, outbox=self.name.text(), **values)
        if row is None:
            if values["outbox_id"] not in (None, self.identity().outbox_id):
                raise OutboxMissingError(
                    f"{self.name} is no longer outbox {values['outbox_id']}, for which this harvester was started. "
                    "Restart the harvester"
                )
            if values["after"]:
                raise self._fenced()
            raise OutboxMissingError(
                f"{self.name.text('shard')} has no row for shard {SHARD}. Run `airflow-outbox init`"
            )

    def fence(self, view: UUID) -> Fence:
        """Return the fence row with what stands beside it, and what the database says of itself now.

        Raises FencedError, OutboxMissingError.
        """
        newest = (
            self._statements.composed("fence.newest_transaction_id")
            if "transaction_id" in self.columns
            else sql.SQL("0")
        )
        values = {"shard": SHARD, "view": view, "outbox": self.name.text()}
        row = self._statements.named_row("fence.fence", values, newest_transaction_id=newest, **self._present)
        if row is None:
            raise self._fenced()
        for table, found in {"state": row.paused, "ledger": row.transactional_ids}.items():
            if found is None:
                raise OutboxMissingError(f"{self.name.text(table)} has no row. Restore it from a backup")
        present = History(
            row.present_system_identifier, row.present_timeline, row.present_table_oid, row.present_database_oid
        )
        recorded = History(row.system_identifier, row.timeline, row.table_oid, row.database_oid)
        return Fence(
            request=OperatorRequest(paused=row.paused, handover=row.handover),
            outbox_id=row.outbox_id,
            incarnation=row.incarnation,
            delivery=row.delivery,
            transactional_ids=tuple(row.transactional_ids),
            recorded=present if row.system_identifier is None else recorded,  # `begin` records it
            present=present,
            witness=LedgerPosition(row.ledger_topic_id, row.witnessed_batch, row.ledger_offset, row.highest_id),
            last_drawn=self._drawn(row.last_drawn),
            beats=row.beats,
            next_transaction_id=row.next_transaction_id,
            newest_transaction_id=row.newest_transaction_id,
            halted=row.halted,
            flushed=Flushed(
                None if row.watermark is None else Snapshot.parse(row.watermark),
                row.covered_batch,
                row.topics,
                row.uncovered,
            ),
            begun_view=row.begun_view,
            shard=SHARD,
        )

    def begin(
        self,
        view: UUID,
        *,
        delivery: str,
        witness: LedgerPosition,
        transactional_ids: Sequence[str] | None = None,
        flushed: Flushed | None = None,
    ) -> None:
        """Record how the term harvests, and which ledger it goes by. Also record its producers' ids and how far
        everything is published, unless they are as before. Raises FencedError.
        """
        values = {
            "delivery": delivery,
            "transactional_ids": None if transactional_ids is None else [*transactional_ids],
            **asdict(witness),
            **_account(flushed),
        }
        self._fenced_unless(self._row("fence.begin", self._present, view=view, outbox=self.name.text(), **values))

    def prefer_indexes(self) -> None:
        """Keep this connection from scanning the table."""
        self._statements.execute("windows.prefer_indexes")

    def first_reading(self, watermark: Snapshot | None, *, seconds: float) -> PageSnapshot:
        """Return where a term begins to read: at the first record of the whole table.

        Dead rows before that record may hide it for so many seconds. Then it begins after the `watermark`: no record is
        from a transaction that the watermark sees, where the trigger against loaded rows is on.
        """
        try:
            with translated(self.name), self.connection.transaction():
                self._row("windows.look_briefly", milliseconds=max(1, int(1000 * seconds)))
                self._row("windows.lowest_id")
        except PostgresError as error:
            if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
                raise
            if watermark is not None and is_guarded(self.connection, self.name):
                return PageSnapshot(after=watermark)
        return PageSnapshot()

    def read(self, reading: PageSnapshot, *, max_records: int, max_bytes: int, transaction_ids: bool) -> Page:
        """Return the next page of a window: at most `max_bytes` of key and value, or one record."""
        values = {
            "after": None if reading.after is None else str(reading.after),
            "within": None if reading.within is None else str(reading.within),
            "above": reading.above,
            "outbox": self.name.text(),
            "most_bytes": self.most_bytes,
        }
        statement = "read_on" if reading.after is None or reading.within is not None else "read_window"
        query = self._readings[statement, transaction_ids]
        while True:
            records, share = self._page_size.shares(max_records=max_records, max_bytes=max_bytes)
            with translated(self.name), self.connection.cursor(binary=True) as cursor:
                cursor.execute(query, {**values, "max_records": records, "max_size": share}, prepare=True)
                _, seen, *_ = cast("tuple[Any, ...]", cursor.fetchone())
                found = cast("list[OutboxRow]", cursor.fetchall())
            rows = self._page_size.fitting(found, share=share, max_bytes=max_bytes)
            if rows or not found:
                break
        snapshot, written, flushed, table_oid, file_number, drawn = seen.split(" ")
        return Page(
            rows=rows,
            snapshot=Snapshot.parse(snapshot),
            complete=len(rows) < records and len(rows) == len(found),
            written=int(written),
            flushed=int(flushed),
            table_oid=int(table_oid),
            file_number=int(file_number),
            last_drawn=int(drawn),
        )

    def lengths(self, transaction_ids: Collection[int]) -> dict[int, Length]:
        """Return how many records each of these transactions has in the outbox, and the last one's id."""
        rows = self._statements.rows("windows.lengths", {"transaction_ids": [str(each) for each in transaction_ids]})
        return {transaction_id: Length(records, last_id) for transaction_id, records, last_id in rows}

    def flush(self, position: int) -> int:
        """Wait until Postgres' log is durable up to a position, also on the standbys that commits wait for. Return how
        far it is durable.
        """
        flushed = self._number("windows.flushed", durable=self._statements.composed("windows.durable"))
        return flushed if flushed >= position else self._number("windows.flush")

    def purge_published(
        self,
        view: UUID,
        ids: Sequence[int],
        snapshot: Snapshot,
        *,
        watermark: Snapshot | None = None,
        batch: int | None = None,
    ) -> int:
        """Delete, or archive, published records that the snapshot sees, and announce the watermark, unless it is None.

        Returns how far Postgres' log is on disk. `batch` is the records' number in the ledger. Raises FencedError.
        """
        announced = None if watermark is None else str(watermark)
        values = {"snapshot": str(snapshot), "watermark": announced, "batch": batch}
        between = _between(ids)
        if between is None:
            row = self._row("windows.purge_published", self._purging_one_by_one, view=view, ids=list(ids), **values)
        else:
            row = self._row("windows.purge_published", self._purging_between, view=view, **between, **values)
        self._fenced_unless(row)
        return int(cast("tuple[Any, ...]", row)[1])

    def mark(self, view: UUID, *, max_records: int, max_bytes: int, only_marked: bool = False) -> list[MarkedRecord]:
        """Claim and return the next records by id; none when nothing is due. `only_marked` limits them to those that
        another view has marked. Raises FencedError.
        """
        bounds = {"max_records": max_records, "max_bytes": max_bytes, "only_marked": only_marked}
        bounds["most_bytes"] = self.most_bytes
        with translated(self.name), self.connection.cursor(binary=True) as cursor:
            cursor.execute(
                self._mark,
                {"view": view, "shard": SHARD, **bounds},
                prepare=True,
            )
            records = [MarkedRecord._make(row) for row in cursor]
        if not records:
            self.require_fence(view)
        return records

    def require_fence(self, view: UUID) -> None:
        """Raise FencedError unless the fence names this view."""
        self._fenced_unless(self._row("fence.holds_fence", view=view))

    def purge(self, view: UUID, ids: Sequence[int]) -> None:
        """Delete, or archive, published records of this view. Raises FencedError."""
        self._fenced_unless(self._row("marks.purge", self._purging, view=view, ids=list(ids), batch=None))

    def reset(self, view: UUID, ids: Sequence[int]) -> None:
        """Remove this view's mark from records that were not published. Raises FencedError."""
        self._fenced_unless(self._row("marks.reset", view=view, ids=list(ids)))

    def heartbeat(
        self,
        view: UUID,
        *,
        published: int,
        in_flight: int,
        rate: float,
        witness: LedgerPosition | None = None,
        flushed: Flushed | None = None,
    ) -> Pulse:
        """Tell the fence row that the view is alive, how many more records it has published, what it has witnessed, and
        how far everything is published, and announce that. `rate` is in records/s. Raises FencedError.
        """
        seen = {"batch": None, "offset": None, "highest_id": None} | (asdict(witness) if witness else {})
        seen |= _account(flushed)
        values = {"published": published, "in_flight": in_flight, "rate": rate, "outbox": self.name.text()}
        values |= {"shard": SHARD, "view": view, **seen}
        with replicated(self.connection):
            row = self._statements.named_row("fence.heartbeat", values, **self._announcing)
        if row is None:
            raise self._fenced()
        request = OperatorRequest(paused=row.paused, handover=row.handover)
        return Pulse(request, row.present_table_oid, self._drawn(row.last_drawn), row.beats)

    def leave(self, view: UUID) -> None:
        """Record that this view's leader has ended gracefully: nobody leads."""
        self._statements.execute("fence.leave", {"view": view, "shard": SHARD})

    def halt(self, view: UUID, reason: str) -> None:
        """Stop harvesting until an operator adopts."""
        values = {"view": view, "shard": SHARD, "reason": storable(self.connection, reason)}
        self._statements.execute("fence.halt", values)

    def note_error(self, view: UUID, error: str) -> None:
        """Record the reason for a failure in the fence row, for `check` and for people."""
        values = {"view": view, "shard": SHARD, "error": storable(self.connection, error)}
        self._statements.execute("fence.note_error", values)

    def holds_marks(self) -> bool:
        """Whether any record carries a mark. Looks at all records, if need be."""
        return bool(cast("tuple[bool]", self._row("marks.holds_marks"))[0])

    def is_empty(self) -> bool:
        """Whether every committed record has been published and purged."""
        guarded = "transaction_id" in self.columns and is_guarded(self.connection, self.name)
        if guarded:
            self.prefer_indexes()
        return bool(
            cast("tuple[bool]", self._row("windows.is_empty_after_watermark" if guarded else "marks.is_empty"))[0]
        )

    def close(self) -> None:
        self.connection.close()

    @cached_property
    def _purging(self) -> Mapping[str, sql.Composable]:
        """The parts of a purging statement that decide what becomes of the deleted rows."""
        if not self.archives:
            return {"returned": sql.SQL(""), "archived": sql.SQL("")}
        return {"returned": sql.SQL("RETURNING *"), "archived": archived(self.name, self.columns)}

    @cached_property
    def _present(self) -> Mapping[str, sql.Composable]:
        return {"present": self._statements.composed("fence.present")}

    @cached_property
    def _announcing(self) -> Mapping[str, sql.Composable]:
        return {"announcement": self._statements.composed("fence.announcement")}

    @cached_property
    def _purging_one_by_one(self) -> Mapping[str, sql.Composable]:
        return {**self._purging, **self._announcing, "those_ids": self._statements.composed("windows.ids_one_by_one")}

    @cached_property
    def _purging_between(self) -> Mapping[str, sql.Composable]:
        return {**self._purging, **self._announcing, "those_ids": self._statements.composed("windows.ids_between")}

    @cached_property
    def _mark(self) -> sql.Composed:
        return self._statements.composed(
            "marks.mark", partition=self._partition, measured=self._statements.composed("windows.measured")
        )

    @property
    def _partition(self) -> sql.Composable:
        return sql.Identifier("kafka_partition") if "kafka_partition" in self.columns else sql.NULL

    @cached_property
    def _readings(self) -> Mapping[tuple[str, bool], sql.Composed]:
        first = {
            "durable": self._statements.composed("windows.durable"),
            "table": self._statements.composed("windows.table_read"),
        }
        wanted = {True: sql.SQL("transaction_id::text::bigint"), False: sql.SQL("NULL::bigint")}
        return {
            (statement, asked): self._statements.composed(
                f"windows.{statement}",
                partition=self._partition,
                transaction_id=transaction_id,
                measured=self._statements.composed("windows.measured"),
                last_drawn=self._statements.composed("windows.last_drawn"),
                **first,
            )
            for statement in ("read_window", "read_on")
            for asked, transaction_id in wanted.items()
        }

    def _row(
        self, statement: str, parts: Mapping[str, sql.Composable] | None = None, /, **values: Any
    ) -> tuple[Any, ...] | None:
        with replicated(self.connection):
            values = {"shard": SHARD, **values}
            return cast("tuple[Any, ...] | None", self._statements.row(statement, values, **(parts or {})))

    def _number(self, statement: str, **parts: sql.Composable) -> int:
        return int(cast("tuple[int]", self._row(statement, parts))[0])

    def _drawn(self, last_drawn: int | None) -> int:
        if last_drawn is None:
            raise PostgresError(
                f"the role may not read the sequence of {self.name}'s ids. `airflow-outbox grant` prints what it needs"
            )
        return last_drawn

    def _fenced_unless(self, row: tuple[Any, ...] | None) -> None:
        if row is None or row[0] is False:
            raise self._fenced()

    def _fenced(self) -> FencedError:
        return FencedError(f"{self.name}: another view has taken over shard {SHARD}")


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


def _account(flushed: Flushed | None) -> dict[str, str | int | None]:
    """Return the values that tell a statement how far everything is published; None: as before."""
    if flushed is None:
        return dict.fromkeys(("watermark", "covered_batch", "topics", "uncovered"))
    return {
        "watermark": None if flushed.watermark is None else str(flushed.watermark),
        "covered_batch": flushed.batch,
        "topics": json.dumps(dict(flushed.topics)),
        "uncovered": json.dumps(dict(flushed.uncovered)),
    }
