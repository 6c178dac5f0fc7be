"""One term of harvesting exactly once: recover, then read → publish → purge, with a ledger in Kafka and no mark a row.

Recovering comes first, in this order, and each step relies on the ones before it:

1. the fence row names this view (the caller has taken over): no older view's statement can change anything any more;
2. the log fences every older producer: no older view's transaction can be committed any more, and none is open;
3. the ledger is read up to its end, so it is complete for all views before this one;
4. fence row and ledger are held against each other (`protocol.recovery`): they tell of one history, or nothing happens;
5. what is committed and not known to be purged is purged. What is in the table now is unpublished, all of it.

Then activities overlap: while batch n is being committed, n+1 is read and n-1 is purged.

- *reading* follows the windows (`protocol.windows`), as far as the bounds leave room;
- *publishing* puts what has been read into one Kafka transaction, in id order, with its entry in the ledger. It commits
  only what is on Postgres' disk: a record that a crash of Postgres would undo must not be in Kafka;
- *purging* deletes the batches that are committed, one after the other.

Any failure or uncertainty ends the term at once, whatever was under way, and nothing is assumed about it: the next view
recovers. There is nothing to roll back, for nothing was marked.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from airflow_outbox.errors import HistoryError
from airflow_outbox.fence import Fence, Flushed, Pulse, Witness
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.ports import Table, TransactionalLog
from airflow_outbox.harvest.protocol.closure import Closure, lengths_in
from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Head, LedgerRecord, chunk_key, runs
from airflow_outbox.harvest.protocol.recovery import recover, require_pulse
from airflow_outbox.harvest.protocol.stamps import StampNames, Stamps
from airflow_outbox.harvest.protocol.windows import Windows
from airflow_outbox.harvest.term import SLOWEST_POLL, Term
from airflow_outbox.pages import BYTES, OutboxRow
from airflow_outbox.records import Snapshot

DELIVERY = "exactly_once"
_MAX_UNPURGED = 4  # batches


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one page, and whether a batch may end with them."""

    rows: Sequence[OutboxRow]
    within: Snapshot
    written: int
    ends: bool


@dataclass(slots=True)
class _Batch:
    """What one Kafka transaction holds. `witness` is what holds once it is committed and purged."""

    ids: list[int] = field(default_factory=list)
    topics: Counter[str] = field(default_factory=Counter)
    extents: dict[tuple[str, int], Extent] = field(default_factory=dict)
    within: Snapshot | None = None
    written: int = 0
    may_end: bool = False
    witness: Witness | None = None

    def add(self, piece: _Piece, extents: Iterable[Extent]) -> None:
        self.ids += [row[0] for row in piece.rows]
        self.topics.update(row[1] for row in piece.rows)
        for extent in extents:
            place = extent.topic, extent.partition
            earlier = self.extents.get(place)
            self.extents[place] = extent if earlier is None else earlier.followed_by(extent)
        self.within, self.written, self.may_end = piece.within, max(self.written, piece.written), piece.ends


class ExactlyOnceTerm(Term):
    """Harvests under one view; `fence` is what its take-over found."""

    def __init__(
        self,
        *,
        view: UUID,
        fence: Fence,
        table: Table,
        log: TransactionalLog,
        limits: Limits,
        published: Counter[str],
        atomic: bool = False,
        stamp_names: StampNames | None = None,
    ) -> None:
        super().__init__(view=view, request=fence.request, table=table, limits=limits, published=published)
        self._fence = fence
        self._log = log
        self._atomic = atomic
        self._windows = Windows()
        self._tracking = FlushTracking(fence.flushed)
        self._announced = fence.flushed.watermark
        self._accounted = fence.flushed
        self._closure = Closure(max_transaction_records=limits.max_transaction_records)
        self._stamps = Stamps(stamp_names, outbox_id=fence.outbox_id) if atomic and stamp_names else None
        self._pieces: deque[_Piece] = deque()
        self._unpurged: deque[_Batch] = deque()
        self._held_records = 0
        self._held_bytes = 0
        self._unpurged_records = 0
        self._flushed = 0
        self._beats = fence.beats
        self._kept: dict[int, int] = {}  # the ledger's entries that stand: chunks by batch
        self._published_witness = self._purged_witness = self._witnessed = fence.witness
        self._read_more = asyncio.Event()
        self._committed = asyncio.Event()
        self._purged_some = asyncio.Event()
        self._all_committed = False

    @property
    def in_flight(self) -> int:
        return self._held_records + self._unpurged_records

    @property
    def witness(self) -> Witness:
        """What holds of the ledger when all that is committed is purged."""
        return self._published_witness

    def stop(self) -> None:
        for event in (self._stopping, self._room_made, self._read_more):
            event.set()

    async def run(self) -> None:
        await self.recover()
        await self._run([self._read(), self._publish(), self._purge()])

    async def recover(self) -> None:
        """Complete what earlier views have committed. Raises FencedError, HistoryError, KafkaError, PostgresError."""
        await self._log.fence(self._log.transactional_id)
        if self._fence.transactional_id not in (None, self._log.transactional_id):  # it was configured anew
            await self._log.fence(self._fence.transactional_id)
        ledger = await self._log.ledger(self._fence.witness.offset)
        self._fence = await self._table.fence(self.view)  # again, for what was committed until the log was fenced
        recovery = recover(self._fence, ledger)
        for entry in recovery.unpurged:
            await self._table.purge_published(self.view, entry.ids(), entry.snapshot)
        flushed = self._fence.flushed.with_more(entry.topics() for entry in recovery.unpurged)
        await self._table.begin(
            self.view,
            delivery=DELIVERY,
            witness=recovery.witness,
            transactional_id=self._log.transactional_id,
            flushed=flushed,
        )
        self._tracking, self._accounted, self._announced = (
            FlushTracking(flushed, batch=recovery.witness.batch),
            flushed,
            flushed.watermark,
        )
        self._published_witness = self._purged_witness = self._witnessed = recovery.witness
        self._beats = self._fence.beats + 1  # by `begin`
        self._kept = dict(recovery.kept)

    async def _read(self) -> None:
        idle = 1
        page_records = min(self._limits.batch_records, -(-self._limits.max_in_flight_records // 3))
        while not self._stopping.is_set():
            self._room_made.clear()
            records = self._limits.max_in_flight_records - self._held_records
            size = self._limits.max_in_flight_bytes - self._held_bytes
            if self.request.paused or records < page_records or size <= 0:
                await self._room_made.wait()
            elif await self._read_page(max_records=page_records, max_bytes=size):
                idle = 1
            else:
                await self._pause(idle * self._limits.poll_interval, self._stopping)
                idle = min(2 * idle, SLOWEST_POLL)

    async def _read_page(self, *, max_records: int, max_bytes: int) -> bool:
        page = await self._table.read(
            self._windows.next, max_records=max_records, max_bytes=max_bytes, transaction_ids=self._atomic
        )
        self._flushed = max(self._flushed, page.flushed)
        rows, complete, ends = page.rows, page.complete, True
        if self._atomic and rows:
            await self._learn(rows, complete=complete)
            taken, ends = self._closure.cut(rows, complete=complete)
            complete, rows = complete and taken == len(rows), rows[:taken]
            if self._stamps is not None:
                rows = self._stamps.stamped(rows, self._closure.lengths)
        last_id = rows[-1][0] if rows else None
        within = self._windows.advance(snapshot=page.snapshot, last_id=last_id, complete=complete)
        self._tracking.send(len(rows))
        if self._windows.next.within is None:
            self._tracking.end_window(within)
        if rows:
            self._held_records += len(rows)
            self._held_bytes += rows[-1][BYTES]
            self._pieces.append(_Piece(rows, within, page.written, ends))
            self._read_more.set()
        return bool(rows)

    async def _learn(self, rows: Sequence[OutboxRow], *, complete: bool) -> None:
        """Know the lengths of all transactions in these rows; in a window's last page all of them end."""
        unknown = self._closure.unknown(rows)
        lengths = {} if complete or not unknown else await self._table.lengths(unknown)
        self._closure.learn({**lengths_in(rows, unknown), **lengths})  # others may have deleted records meanwhile

    async def _publish(self) -> None:
        while (piece := await self._next_piece()) is not None:
            await self._publish_batch(piece)
        self._all_committed = True
        self._committed.set()

    async def _next_piece(self) -> _Piece | None:
        """What to begin the next batch with; None when the term is to stop."""
        while not self._stopping.is_set():
            if self._pieces and len(self._unpurged) < _MAX_UNPURGED:
                return self._pieces.popleft()
            awaited = self._purged_some if self._pieces else self._read_more
            awaited.clear()
            await awaited.wait()
        return None

    async def _publish_batch(self, first: _Piece) -> None:
        batch = _Batch()
        await self._log.begin()
        piece: _Piece | None = first
        while piece is not None:
            batch.add(piece, await self._log.publish(piece.rows))
            self._held_records -= len(piece.rows)
            self._held_bytes -= piece.rows[-1][BYTES]
            self._room_made.set()
            piece = await self._more_for(batch)
        if not batch.may_end:
            return  # asked to stop; the open transaction will never be committed
        if self._flushed < batch.written:
            self._flushed = await self._table.flush(batch.written)
        await self._commit(batch)

    async def _more_for(self, batch: _Batch) -> _Piece | None:
        """What else belongs into the batch, or fits into it and is there."""
        while not self._pieces and not batch.may_end and not self._stopping.is_set():
            self._read_more.clear()
            await self._read_more.wait()
        if not self._pieces:
            return None
        fits = len(batch.ids) + len(self._pieces[0].rows) <= self._limits.batch_records
        return self._pieces.popleft() if fits or not batch.may_end else None

    async def _commit(self, batch: _Batch) -> None:
        number = self._published_witness.batch + 1
        highest_id = max(self._published_witness.highest_id, max(batch.ids))
        assert batch.within is not None
        entry = Entry(
            batch=number,
            view=self.view,
            incarnation=self._fence.incarnation,
            snapshot=batch.within,
            runs=runs(batch.ids),
            extents=tuple(batch.extents.values()),
        )
        records = entry.records()
        gone = [kept for kept in self._kept.items() if kept[0] <= self._witnessed.batch]
        kept = {**self._kept, number: len(records)}
        tombstones: list[LedgerRecord] = []
        for old, chunks in gone:
            tombstones += [(chunk_key(old, chunk), None) for chunk in range(chunks)]
            del kept[old]
        head = Head(
            outbox_id=self._fence.outbox_id,
            incarnation=self._fence.incarnation,
            view=self.view,
            batch=number,
            witnessed=self._witnessed.batch,
            highest_id=highest_id,
            beats=self._beats,
            kept=tuple(kept.items()),
        )
        offset = await self._log.commit([*records, *tombstones, head.record()])
        self._kept = kept
        self._published_witness = replace(self._published_witness, batch=number, offset=offset, highest_id=highest_id)
        batch.witness = self._published_witness
        self._unpurged.append(batch)
        self._unpurged_records += len(batch.ids)
        self._tracking.flush(len(batch.ids))
        self._committed.set()

    async def _purge(self) -> None:
        while self._unpurged or not self._all_committed:
            if not self._unpurged:
                self._committed.clear()
                await self._committed.wait()
                continue
            batch = self._unpurged[0]
            assert batch.within is not None
            assert batch.witness is not None
            watermark = self._tracking.watermark
            announced = watermark if watermark != self._announced else None
            flushed = await self._table.purge_published(self.view, batch.ids, batch.within, watermark=announced)
            self._flushed = max(self._flushed, flushed)
            if batch.witness.offset <= self._purged_witness.offset:  # not before the purge, for the batch is committed
                raise HistoryError("the ledger's topic was deleted and made anew")
            self._announced = watermark
            self._purged_witness = batch.witness
            self._tracking.purge(batch.witness.batch, len(batch.ids), batch.topics)
            self._unpurged.popleft()
            self._unpurged_records -= len(batch.ids)
            self._count(batch.topics)
            self._purged_some.set()

    def _to_witness(self) -> Witness | None:
        return self._purged_witness if self._purged_witness != self._witnessed else None

    def _to_account(self) -> Flushed | None:
        flushed = self._tracking.account
        return flushed if flushed != self._accounted else None

    def _told(self, pulse: Pulse, witness: Witness | None, flushed: Flushed | None) -> None:
        # Held against what was known when the question left: ids are drawn and published while the answer is on its
        # way.
        self._witnessed = witness or self._witnessed
        self._accounted = flushed or self._accounted
        self._beats = pulse.beats
        require_pulse(self._fence, pulse, highest_id=self._witnessed.highest_id)


class SettlingTerm(ExactlyOnceTerm):
    """Completes what was committed exactly once, before the outbox is harvested in another mode."""

    async def run(self) -> None:
        await self.recover()
