"""The contents of a simulated Postgres: rows, open transactions, the shards' fence rows; and each change of them."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from uuid import UUID

from airflow_outbox.harvest.protocol.ledger import Entry
from airflow_outbox.values.fence import (
    PRIMARY,
    AttachHow,
    DatabaseIdentity,
    Flushed,
    LedgerPosition,
    LedgerRow,
    OperatorRequest,
    Skipped,
)
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.records import MarkedRecord, Snapshot
from airflow_outbox.values.refusals import Refusal

SLOTS = 64


def slot_of(record: MarkedRecord) -> int:
    """The slot of a record's topic and key."""
    return _slot(record.topic, record.key)


@cache
def _slot(topic: str, key: object) -> int:
    # Mixed: by the sum itself, all keys of a partition would belong to the same of two shards.
    return (zlib.crc32(f"{topic} {key}".encode()) * 0x9E3779B1 >> 16) % SLOTS


@dataclass(frozen=True, slots=True)
class FenceRow:
    """The row of a shard in `<outbox>_shard`, with that beside it in `<outbox>_ledger`. What `<outbox>_state` has is
    in that of shard 0. `slots` None: all of them.
    """

    view: UUID | None = None
    backends: tuple[Any, ...] = ()
    incarnation: int = 1
    delivery: str | None = None
    transactional_ids: tuple[str, ...] = ()
    recorded: DatabaseIdentity | None = None
    begun_view: UUID | None = None
    witness: LedgerPosition = field(default_factory=LedgerPosition)
    primary: str = PRIMARY
    backups: Mapping[str, LedgerRow] = field(default_factory=dict)
    owed: Mapping[str, LedgerRow] = field(default_factory=dict)
    begun_primary: str | None = None
    attach: str | None = None
    attach_how: AttachHow | None = None
    attaches: bool = False
    skipped: Mapping[str, Skipped] = field(default_factory=dict)
    membership: int = 1
    beats: int = 0
    halted: str | None = None
    flushed: Flushed = field(default_factory=Flushed)
    request: OperatorRequest = field(default_factory=OperatorRequest)
    slots: tuple[int, ...] | None = None
    is_led: bool = False
    hands_over: bool = False  # an operator has asked for it since the last take-over
    heard_at: float = 0.0

    def has(self, record: MarkedRecord) -> bool:
        """Whether the record is in one of the shard's slots."""
        return self.slots is None or slot_of(record) in self.slots


@dataclass(slots=True)
class Row:
    """A row of the outbox, visible or not yet."""

    record: MarkedRecord
    transaction_id: int
    mark: UUID | None = None


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row of the parked table; `due`: to be tried now."""

    record: MarkedRecord
    transaction_id: int
    refusal: Refusal | None
    due: bool = False
    requested: str | None = None
    discarded: bool = False

    @property
    def waits_to_be_asked_for(self) -> bool:
        return self.refusal is not None and not self.refusal.cause.can_pass

    @property
    def has_a_cause_of_its_own(self) -> bool:
        return self.refusal is not None and not self.refusal.cause.is_of_the_topic


@dataclass(frozen=True, slots=True)
class OwedBatch:
    """A batch that clusters are owed: its entry, and its records as they were published."""

    entry: Entry
    records: Sequence[MarkedRecord]
    shard: int = 0


@dataclass(slots=True)
class State:
    """The state that the log's records amount to."""

    rows: dict[int, Row] = field(default_factory=dict)
    open: dict[int, list[Row]] = field(default_factory=dict)
    prepared: set[int] = field(default_factory=set)
    parked: dict[int, ParkedRow] = field(default_factory=dict)
    next_number: int = 1
    fences: dict[int, FenceRow] = field(default_factory=lambda: {0: FenceRow()})
    layout: Layout = field(default_factory=Layout)
    last_drawn: int = 0
    next_transaction_id: int = 1000
    latest_completed: int = 999
    table_oid: int = 1
    file_number: int = 1
    owed: dict[tuple[int, int], OwedBatch] = field(default_factory=dict)
    """What was published while a cluster did not count, by shard and number."""
    outcomes: dict[int, bool] = field(default_factory=dict)
    """Which transactions have ended, and whether by a commit."""

    @property
    def fence(self) -> FenceRow:
        """The first shard's row."""
        return self.fences[0]

    @property
    def present(self) -> dict[int, FenceRow]:
        """The rows of shards that have slots."""
        return {shard: row for shard, row in self.fences.items() if row.slots != ()}

    def begin(self, transaction_id: int) -> None:
        self.open[transaction_id] = []
        self.next_transaction_id = max(self.next_transaction_id, transaction_id + 1)

    def insert(self, transaction_id: int, row: Row) -> None:
        self.open[transaction_id].append(replace(row))

    def prepare(self, transaction_id: int) -> None:
        self.prepared.add(transaction_id)

    def end(self, transaction_id: int, committed: bool) -> None:
        rows = self.open.pop(transaction_id)
        self.prepared.discard(transaction_id)
        self.outcomes[transaction_id] = committed
        self.latest_completed = max(self.latest_completed, transaction_id)
        if committed:
            self.rows.update((row.record.id, row) for row in rows)

    def draw(self, number: int) -> None:
        self.last_drawn = number

    def delete(self, transaction_id: int, ids: Iterable[int], at: int) -> None:
        self._change(transaction_id)
        for number in ids:
            del self.rows[number]

    def keep(self, transaction_id: int, batch: OwedBatch) -> None:
        self._change(transaction_id)
        self.owed.setdefault((batch.shard, batch.entry.batch), batch)

    def drop(self, transaction_id: int, batches: Iterable[tuple[int, int]]) -> None:
        self._change(transaction_id)
        for batch in batches:
            del self.owed[batch]

    def forget(self, transaction_id: int) -> None:
        """Nothing is owed any more."""
        self._change(transaction_id)
        self.owed.clear()

    def set_marks(self, transaction_id: int, ids: Iterable[int], mark: UUID | None) -> None:
        self._change(transaction_id)
        for number in ids:
            self.rows[number].mark = mark

    def park(self, transaction_id: int, moves: Iterable[tuple[int, int, Refusal | None]]) -> None:
        """Rows of the outbox, by id, become parked ones, by number."""
        self._change(transaction_id)
        for identity, number, refusal in moves:
            row = self.rows.pop(identity)
            self.parked[number] = ParkedRow(row.record, row.transaction_id, refusal, due=_can_pass(refusal))
            self.next_number = number + 1

    def unpark(self, transaction_id: int, numbers: Iterable[int], at: int) -> None:
        self._change(transaction_id)
        for number in numbers:
            del self.parked[number]

    def released(self, most: int, shard: int = 0) -> tuple[int, ...]:
        """The numbers of what nothing holds any more, in a shard."""
        own = self.fences[shard].has
        waiting = [
            (number, row) for number, row in sorted(self.parked.items()) if not row.discarded and own(row.record)
        ]
        topics = {row.record.topic for _, row in waiting if row.refusal and row.refusal.cause.is_of_the_topic}
        heads = {row.record[1:3]: (number, row) for number, row in reversed(waiting)}
        free = [
            number
            for number, row in heads.values()
            if row.refusal is None and not row.due and row.record.topic not in topics
        ]
        return tuple(free[:most])

    def release(self, transaction_id: int, numbers: Iterable[int]) -> None:
        self._change(transaction_id)
        for number in numbers:
            self.parked[number] = replace(self.parked[number], due=True)

    def refuse(
        self,
        transaction_id: int,
        refusals: Mapping[int, Refusal],
        others: Collection[int],
        still_asked_for: Collection[int],
    ) -> None:
        """Parked rows were refused again, and others were tried with them."""
        self._change(transaction_id)
        for number in {*refusals, *others}:
            row = self.parked[number]
            refusal = refusals.get(number)
            if refusal is None and row.waits_to_be_asked_for and row.refusal and not row.refusal.cause.is_of_the_topic:
                refusal = row.refusal
            self.parked[number] = replace(
                row,
                refusal=refusal,
                due=_can_pass(refusal),
                requested=None if row.requested == "retry" and number not in still_asked_for else row.requested,
            )

    def ask(self, transaction_id: int, numbers: Iterable[int], request: str) -> None:
        """An operator asks for something."""
        self._change(transaction_id)
        for number in numbers:
            self.parked[number] = replace(self.parked[number], requested=request)

    def discard(self, transaction_id: int, numbers: Collection[int]) -> None:
        self._change(transaction_id)
        for number in numbers:
            self.parked[number] = replace(self.parked[number], discarded=True, due=False, requested=None)

    def announce(self, watermark: Snapshot, at: int, slots: tuple[int, ...] | None) -> None:
        """The news that listeners get of these slots when the statement that follows has ended."""

    def set_fence(self, transaction_id: int, fence: FenceRow, shard: int = 0) -> None:
        self._change(transaction_id)
        self.fences[shard] = fence

    def ask_layout(self, transaction_id: int, layout: Layout) -> None:
        """An operator asks for another number of shards."""
        self._change(transaction_id)
        self.layout = layout
        for shard in range(layout.wanted or 0):
            first = self.fences[0]
            rows = [dict.fromkeys(clusters, LedgerRow()) for clusters in (first.backups, first.owed)]
            self.fences.setdefault(shard, FenceRow(slots=(), primary=first.primary, backups=rows[0], owed=rows[1]))

    def set_layout(self, transaction_id: int, layout: Layout, fences: Mapping[int, FenceRow]) -> None:
        self._change(transaction_id)
        self.layout, self.fences = layout, dict(fences)

    def exchange(self, transaction_id: int, table_oid: int) -> None:
        self._change(transaction_id)
        self.rows, self.last_drawn, self.table_oid = {}, 0, table_oid
        self.file_number += 1

    def load(self, transaction_id: int, table_oid: int) -> None:
        """All that is committed stands in another cluster now, which is younger and has seen no transaction of it."""
        self.open.clear()
        self.prepared.clear()
        self.outcomes.clear()
        self.next_transaction_id, self.latest_completed, self.table_oid = 1000, 999, table_oid

    def recover(self) -> None:
        """Restart: transactions that were neither ended nor prepared are rolled back."""
        for transaction_id in [number for number in self.open if number not in self.prepared]:
            self.end(transaction_id, False)
        self.latest_completed = self.next_transaction_id - 1

    def _change(self, transaction_id: int) -> None:
        """A statement that is a transaction of its own."""
        self.next_transaction_id = max(self.next_transaction_id, transaction_id + 1)
        self.latest_completed = max(self.latest_completed, transaction_id)


def _can_pass(refusal: Refusal | None) -> bool:
    return refusal is not None and refusal.cause.can_pass
