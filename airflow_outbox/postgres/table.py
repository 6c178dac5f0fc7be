"""OutboxTable: a running outbox's only access to Postgres.

It runs the statements of `sql/fence.sql`, and turns Postgres' answers into this project's values and errors; its parts
`windows` and `marks` have those about records. One OutboxTable uses one connection, and one thread at a time uses it.
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

from airflow_outbox.errors import FencedError, OutboxMissingError, PostgresError, SchemaVersionError
from airflow_outbox.postgres.clusters import backups_value, ledger_rows
from airflow_outbox.postgres.columns import Column, column_types, read_columns
from airflow_outbox.postgres.connection import OutboxConnection, located, storable
from airflow_outbox.postgres.errors import replicated, translated
from airflow_outbox.postgres.layout import write_layout
from airflow_outbox.postgres.marks import MarkStatements
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.soundness import require_sound
from airflow_outbox.postgres.statements import FrequentStatement, Statements
from airflow_outbox.postgres.take_over import write_view
from airflow_outbox.postgres.transaction_id_trigger import is_guarded
from airflow_outbox.postgres.undeleted import UndeletedRecords
from airflow_outbox.postgres.windows import WindowStatements
from airflow_outbox.values.fence import (
    PRIMARY,
    DatabaseIdentity,
    Fence,
    Flushed,
    LedgerPosition,
    LedgerRow,
    OperatorRequest,
    Pulse,
    ShardLook,
)
from airflow_outbox.values.pages import ANY_BYTES
from airflow_outbox.values.records import Snapshot
from airflow_outbox.values.verdict import Thresholds

SCHEMA_VERSION = 19
SHARD = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """An outbox's id, and the incarnation its database is in; its layout, how many shards it has, how often another
    cluster was promoted, and which one is the primary.
    """

    outbox_id: UUID
    incarnation: int
    layout: int = 1
    shards: int = 1
    promotions: int = 0
    primary: str = PRIMARY


class OutboxTable:
    """One outbox's statements over one connection. `archives` tells whether purged records are archived.

    Every method raises PostgresError when Postgres refuses or is gone.

    The class is large because it has a method for each statement of a leader. Most of them are a few lines; what takes
    more is in other modules (`windows`, `marks`, `take_over`, `clusters`).
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        name: OutboxName,
        *,
        archives: bool = False,
        most_bytes: int = ANY_BYTES,
        shard: int = SHARD,
        thresholds: Thresholds | None = None,
    ) -> None:
        """The statements are those of the leader of `shard`. `most_bytes` is the largest record that Kafka's client
        takes. Larger ones come without value and headers, and keys that are larger by themselves are represented by a
        stand-in. `thresholds` are the bounds that a take-over tells those who look (None: the last leader's).
        """
        self.connection = connection
        self.name = located(connection, name)
        self.archives = archives
        self.most_bytes = most_bytes
        self.shard = shard
        self.thresholds = thresholds
        self.slots: tuple[int, ...] | None = None
        """The slots of the shard, as its leader has found them (None: all)."""
        self.statements = Statements(connection, self.name)

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """Return the outbox's columns by name. Raises OutboxMissingError."""
        columns = read_columns(self.connection, self.name)
        if not columns:
            raise OutboxMissingError(
                f"there is no table {self.name}. Run `airflow-outbox init`, or correct outbox_table"
            )
        return columns

    @cached_property
    def windows(self) -> WindowStatements:
        """The statements of exactly once."""
        return WindowStatements(self)

    @cached_property
    def undeleted(self) -> UndeletedRecords:
        """The statements about records that Postgres won't delete."""
        return UndeletedRecords(self)

    @property
    def fresh(self) -> sql.Composable:
        """The part of a term's reading statements that leaves out undeleted records, if there are any when it begins.
        Those of its own are not read again anyway. Costs a statement.
        """
        return self.statements.composed("undeleted.unless_undeleted") if self.undeleted.are_any() else sql.SQL("true")

    @cached_property
    def marks(self) -> MarkStatements:
        """The statements of at least once."""
        return MarkStatements(self)

    def identity(self) -> Identity:
        """Return the outbox's id and incarnation. Raises OutboxMissingError, SchemaVersionError."""
        row = self.row("fence.identity")
        if row is None:
            raise OutboxMissingError(f"{self.name.text('state')} is empty. Run `airflow-outbox init`")
        outbox_id, version, incarnation, layout, shards, promotions, primary = row
        if version != SCHEMA_VERSION:
            remedy = "Run `airflow-outbox init`" if version < SCHEMA_VERSION else "Install a newer airflow-outbox"
            raise SchemaVersionError(
                f"{self.name} is at schema version {version}, but this release knows {SCHEMA_VERSION}. {remedy}"
            )
        return Identity(outbox_id, incarnation, layout, shards, promotions, primary or PRIMARY)

    def require_sound(self) -> None:
        """Raise ConfigurationError unless the tables are sound."""
        require_sound(self.connection, self.name)

    def backend(self) -> dict[str, Any]:
        """Return this connection's backend, as take_over() wants it."""
        row = self.row("fence.backend")
        return cast("dict[str, Any]", row[0] if row else {})

    def take_over(
        self,
        view: UUID,
        backends: Sequence[Mapping[str, Any]],
        *,
        member: str,
        after: Collection[UUID] = (),
        outbox_id: UUID | None = None,
        layout: int | None = None,
        reshards: bool = False,
    ) -> Fence:
        """Write a new view into the fence row. If an old view's statement holds the row, end its backends.

        Operators know this member by `member`. `after`, unless empty, holds the only views to follow. `outbox_id`,
        unless None, is the only outbox to lead. Raises FencedError where the fence names none of those views. Raises
        TakeOverError when the row stays locked all the same, by a session that is no leader's. Raises it also for a
        shard that is not to be led now: it has no slots, or another number of shards is being brought about
        (`reshards`: by the caller). Raises LayoutChangedError in another layout than `layout` (None: any).
        """
        values = {"view": view, "backends": json.dumps(list(backends)), "member": member, "after": list(after)}
        values |= {"outbox_id": outbox_id, "layout": layout, "reshards": reshards}
        values |= dict.fromkeys(Thresholds.__slots__) if self.thresholds is None else asdict(self.thresholds)
        write_view(self, values)
        fence = self.fence(view)
        self.slots = fence.slots
        return fence

    def know_slots(self, slots: tuple[int, ...] | None) -> None:
        """Another connection of the same leader has found the shard's slots."""
        self.slots = slots

    def of(self, shard: int) -> OutboxTable:
        """Return another shard's statements over the same connection."""
        if shard == self.shard:
            return self
        return OutboxTable(self.connection, self.name, archives=self.archives, most_bytes=self.most_bytes, shard=shard)

    def write_layout(self, views: Mapping[int, UUID], shards: int) -> Mapping[int, UUID]:
        """Give the outbox this many shards, and return their views. `views` are those of all shards that have slots.

        Raises FencedError.
        """
        return write_layout(self.connection, self.name, views=views, shards=shards)

    def fence(self, view: UUID) -> Fence:
        """Return the fence row with what stands beside it, and what the database says of itself now.

        Raises FencedError, OutboxMissingError.
        """
        newest = (
            self.statements.composed("fence.newest_transaction_id")
            if "transaction_id" in self.columns
            else sql.SQL("0")
        )
        values = {"shard": self.shard, "view": view, "outbox": self.name.text()}
        row = self.statements.named_row("fence.fence", values, newest_transaction_id=newest, **self.present)
        if row is None:
            raise self.fenced()
        for table, found in {"state": row.paused, "ledger": row.transactional_ids}.items():
            if found is None:
                raise OutboxMissingError(f"{self.name.text(table)} has no row. Restore it from a backup")
        backups, owed = ledger_rows(self.name, row.others or {}, row.highest_id)
        present = DatabaseIdentity(
            row.present_system_identifier, row.present_timeline, row.present_table_oid, row.present_database_oid
        )
        recorded = DatabaseIdentity(row.system_identifier, row.timeline, row.table_oid, row.database_oid)
        return Fence(
            request=self._request(row),
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
            shard=self.shard,
            layout=row.layout,
            slots=None if row.slots is None else tuple(row.slots),
            primary=row.primary_cluster,
            backups=backups,
            owed=owed,
            begun_primary=row.begun_primary,
            dormant=tuple(row.dormant),
            membership=row.membership,
        )

    def begin(
        self,
        view: UUID,
        *,
        delivery: str,
        witness: LedgerPosition,
        transactional_ids: Sequence[str] | None = None,
        flushed: Flushed | None = None,
        backups: Mapping[str, LedgerRow] | None = None,
    ) -> None:
        """Record how the term harvests, and which ledger it goes by. Also record its producers' ids and how far
        everything is published, unless they are as before. Raises FencedError.
        """
        values = {
            "delivery": delivery,
            "transactional_ids": None if transactional_ids is None else [*transactional_ids],
            "backups": backups_value(backups or {}),
            **asdict(witness),
            **_account(flushed),
        }
        self.fenced_unless(self.row("fence.begin", self.present, view=view, outbox=self.name.text(), **values))

    def prefer_indexes(self) -> None:
        """Keep this connection from scanning the table."""
        self.statements.execute("windows.prefer_indexes")

    def require_fence(self, view: UUID) -> None:
        """Raise FencedError unless the fence names this view."""
        self.fenced_unless(self.row("fence.holds_fence", view=view))

    def heartbeat(
        self,
        view: UUID,
        *,
        published: int,
        in_flight: int,
        rate: float,
        witness: Mapping[str, LedgerPosition] | None = None,
        flushed: Flushed | None = None,
    ) -> Pulse:
        """Tell the fence row that the view is alive, how many more records it has published, what it has witnessed, and
        how far everything is published, and announce that. `rate` is in records/s. The primary's witness comes first.
        Raises FencedError.
        """
        seen: dict[str, Any] = {"batch": None, "offset": None, "highest_id": None, "backups": None}
        if witness:
            (_, on_primary), *others = witness.items()
            on_backups = {cluster: LedgerRow(found) for cluster, found in others}
            seen |= {**asdict(on_primary), "backups": backups_value(on_backups)}
        seen |= _account(flushed)
        values = {"published": published, "in_flight": in_flight, "rate": rate, "outbox": self.name.text()}
        values |= {"shard": self.shard, "view": view, **seen}
        with replicated(self.connection):
            row = self.statements.named_row("fence.heartbeat", values, **self.announcing)
        if row is None:
            raise self.fenced()
        request = self._request(row)
        return Pulse(request, row.present_table_oid, self._drawn(row.last_drawn), row.beats, row.halted)

    def leave(self, view: UUID) -> None:
        """Record that this view's leader has ended gracefully: nobody leads."""
        self.statements.execute("fence.leave", {"view": view, "shard": self.shard})

    def looks(self) -> list[ShardLook]:
        """All that each shard with slots shows to all members."""
        return [ShardLook(*row) for row in self.statements.rows("fence.looks")]

    def halt(self, view: UUID, reason: str) -> None:
        """Stop harvesting until an operator adopts."""
        values = {"view": view, "shard": self.shard, "reason": storable(self.connection, reason)}
        self.statements.execute("fence.halt", values)

    def note_error(self, view: UUID, error: str) -> None:
        """Record the reason for a failure in the fence row, for `check` and for people."""
        values = {"view": view, "shard": self.shard, "error": storable(self.connection, error)}
        self.statements.execute("fence.note_error", values)

    def is_empty(self) -> bool:
        """Whether every committed record has been published and purged."""
        guarded = "transaction_id" in self.columns and is_guarded(self.connection, self.name)
        if guarded:
            self.prefer_indexes()
        return bool(
            cast("tuple[bool]", self.row("windows.is_empty_after_watermark" if guarded else "marks.is_empty"))[0]
        )

    def close(self) -> None:
        self.connection.close()

    def hang_up(self) -> None:
        """End the connection under a call that another thread waits for. That call fails."""
        if isinstance(self.connection, OutboxConnection):
            self.connection.hang_up()

    @cached_property
    def present(self) -> Mapping[str, sql.Composable]:
        return {"present": self.statements.composed("fence.present")}

    @cached_property
    def announcing(self) -> Mapping[str, sql.Composable]:
        parts = ("announcement", "channel")
        return {part: self.statements.composed(f"fence.{part}") for part in parts}

    @property
    def key(self) -> sql.Composable:
        """The part of a statement that reads a key."""
        return self.statements.composed("windows.key", **column_types(self.columns))

    @property
    def partition(self) -> sql.Composable:
        return sql.Identifier("kafka_partition") if "kafka_partition" in self.columns else sql.NULL

    def row(
        self, statement: str, parts: Mapping[str, sql.Composable] | None = None, /, **values: Any
    ) -> tuple[Any, ...] | None:
        with replicated(self.connection):
            values = {"shard": self.shard, **values}
            return cast("tuple[Any, ...] | None", self.statements.row(statement, values, **(parts or {})))

    def frequent_row(self, statement: FrequentStatement, **values: Any) -> tuple[Any, ...] | None:
        with replicated(self.connection), translated(self.name):
            return statement.execute({"shard": self.shard, **values}).fetchone()

    def _request(self, row: Any) -> OperatorRequest:
        """Only the first shard's leader is asked for another number of shards."""
        shards = None if self.shard else row.shards_wanted
        return OperatorRequest(row.paused, row.handover, shards, row.attach_wanted, row.attach_how, row.attach_closing)

    def _drawn(self, last_drawn: int | None) -> int:
        if last_drawn is None:
            raise PostgresError(
                f"the role may not read the sequence of {self.name}'s ids. `airflow-outbox grant` prints what it needs"
            )
        return last_drawn

    def fenced_unless(self, row: tuple[Any, ...] | None) -> tuple[Any, ...]:
        if row is None or row[0] is False:
            raise self.fenced()
        return row

    def fenced(self) -> FencedError:
        """The error for a view that is not the fence's."""
        return FencedError(f"{self.name}: another view has taken over shard {self.shard}")


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
