"""One term of harvesting exactly once: recover, then read → publish → purge, with a ledger in Kafka and no mark a row.

Recovering comes first, in this order, and each step relies on the ones before it:

1. the fence row names this view (the caller has taken over): no older view's statement can change anything any more;
2. what a glimpse of the ledger tells is held against the fence row: a copy of the database disturbs no original;
3. the log fences every older producer: no older view's transaction can be committed any more, and none is open;
4. the ledger is read up to its end, so it is complete for all views before this one;
5. fence row and ledger are held against each other (`protocol.recovery`): they tell of one history, or nothing happens;
6. what is committed and not known to be purged is purged. What is in the table now is unpublished, all of it.

Then activities overlap: while batch n is being committed, n+1 is read and n-1 is purged.

- *reading* follows the windows (`protocol.windows`), as far as the bounds leave room;
- *publishing* puts what has been read into one Kafka transaction, in id order, with its entry in the ledger. It commits
  only what is on Postgres' disk: a record that a crash of Postgres would undo must not be in Kafka. What can't be
  published, and what comes after it in its lane, is left out, and the entry says so (`protocol.parking`);
- *settling* deletes the records of the batches that are committed, and moves those that were left out into the parked
  table, one batch after the other;
- *attending* looks once a second for parked records that are to be published now or discarded.

Any failure or uncertainty ends the term at once, whatever was under way, and nothing is assumed about it: the next view
recovers. There is nothing to roll back, for nothing was marked.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from uuid import UUID

from airflow_outbox.errors import HistoryError, RecordsRefusedError
from airflow_outbox.fence import Fence, Flushed, Pulse, Witness
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.parking_events import report_discarded, report_parked, report_retried
from airflow_outbox.harvest.ports import Events, Table, TransactionalLog
from airflow_outbox.harvest.protocol.batches import Batch, Piece
from airflow_outbox.harvest.protocol.closure import Closure, lengths_in
from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.harvest.protocol.ledger import Entry, expanded
from airflow_outbox.harvest.protocol.ledger_keeping import LedgerKeeping
from airflow_outbox.harvest.protocol.parking import Caution, ParkedLanes, Refusal, SingleRecords
from airflow_outbox.harvest.protocol.recovery import Recovery, recover, require_no_rival, require_pulse
from airflow_outbox.harvest.protocol.stamps import StampNames, Stamps
from airflow_outbox.harvest.protocol.whole_transactions import WholeTransactions, closed_prefix, transactions
from airflow_outbox.harvest.protocol.windows import Windows
from airflow_outbox.harvest.term import ATTENDING_INTERVAL, Term
from airflow_outbox.pages import OutboxRow
from airflow_outbox.records import Snapshot

DELIVERY = "exactly_once"
_MAX_UNPURGED = 4  # batches


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
        caution: Caution,
        report: Events,
        atomic: bool = False,
        stamp_names: StampNames | None = None,
    ) -> None:
        super().__init__(view=view, request=fence.request, table=table, limits=limits, published=published)
        self._fence = fence
        self._log = log
        self._report = report
        self._atomic = atomic
        self._windows = Windows()
        self._tracking = FlushTracking(fence.flushed)
        self._announced = fence.flushed.watermark
        self._accounted = fence.flushed
        self._closure = Closure(max_transaction_records=limits.max_transaction_records)
        self._stamps = Stamps(stamp_names, outbox_id=fence.outbox_id) if atomic and stamp_names else None
        self._pieces: deque[Piece] = deque()
        self._unpurged: deque[tuple[Entry, Batch]] = deque()
        self._decided: deque[Batch] = deque()
        self._held_records = 0
        self._held_bytes = 0
        self._unpurged_records = 0
        self._flushed = 0
        self._ledger = LedgerKeeping(view, fence, Recovery(fence.witness, (), ()))
        self._caution = caution
        self._take_up(ParkedLanes({}, ()))
        self._due: Sequence[OutboxRow] = ()  # parked records to publish now
        self._due_records = limits.batch_records
        self._last_diversion = 0  # the batch in which something was diverted last
        self._releasing: int | None = 0  # what may be free of its hold is released when this batch is settled
        self._attended = asyncio.Event()
        self._wake = asyncio.Event()
        self._committed = asyncio.Event()
        self._settled_some = asyncio.Event()
        self._all_committed = False

    @property
    def in_flight(self) -> int:
        return self._held_records + self._unpurged_records

    @property
    def witness(self) -> Witness:
        """What holds of the ledger when all that is committed is settled."""
        return self._ledger.published

    def stop(self) -> None:
        for event in (self._stopping, self._room_made, self._wake, self._attended):
            event.set()

    async def run(self) -> None:
        await self.recover()
        await self._run([self._read(), self._publish(), self._settle()], serving=[self._attend()])

    async def recover(self) -> None:
        """Complete what earlier views have committed. Raises FencedError, HistoryError, KafkaError, PostgresError."""
        glimpse = await self._log.glimpse(self._fence.witness.offset)
        require_no_rival(await self._table.fence(self.view), glimpse)
        await self._log.fence(self._log.transactional_id)
        if self._fence.transactional_id not in (None, self._log.transactional_id):  # it was configured anew
            await self._log.fence(self._fence.transactional_id)
        ledger = await self._log.ledger(self._fence.witness.offset)
        self._fence = await self._table.fence(self.view)  # again, for what was committed until the log was fenced
        recovery = recover(self._fence, ledger)
        for entry in recovery.unpurged:
            await self._complete(entry)
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
        self._ledger = LedgerKeeping(self.view, self._fence, recovery)
        self._take_up(ParkedLanes(*await self._table.parked_lanes()))

    def _take_up(self, parked: ParkedLanes) -> None:
        self._parked = parked
        self._dividing: SingleRecords | WholeTransactions = SingleRecords(parked)
        if self._atomic:
            most = self._limits.max_transaction_records
            self._dividing = WholeTransactions(parked, self._caution, max_transaction_records=most)

    async def _complete(self, entry: Entry, *, watermark: Snapshot | None = None) -> None:
        """Do in Postgres what an entry says; it may be done already. The watermark is announced with it."""
        if entry.parked:
            await self._table.park(self.view, entry.parked, entry.snapshot)
        if entry.unparked:
            await self._table.unpark(self.view, expanded(entry.unparked))
        if entry.runs:
            position = await self._table.purge_published(
                self.view, entry.ids(), entry.snapshot, watermark=watermark, batch=entry.batch
            )
            self._flushed = max(self._flushed, position)

    async def _read(self) -> None:
        interval = self._limits.poll_interval
        page_records = min(self._limits.batch_records, -(-self._limits.max_in_flight_records // 3))
        page_bytes = -(-self._limits.max_in_flight_bytes // 3)
        while not self._stopping.is_set():
            self._room_made.clear()
            records = self._limits.max_in_flight_records - self._held_records
            size = self._limits.max_in_flight_bytes - self._held_bytes
            if self.request.paused or records < page_records or (size < page_bytes and self._held_bytes):
                await self._room_made.wait()
            elif await self._read_page(max_records=page_records, max_bytes=page_bytes):
                interval = self._limits.poll_interval
                if self._windows.next.within is None:  # all that was there has been read
                    await self._idle(interval)
            else:
                interval = await self._idle(interval)

    async def _read_page(self, *, max_records: int, max_bytes: int) -> bool:
        page = await self._table.read(
            self._windows.next, max_records=max_records, max_bytes=max_bytes, transaction_ids=self._atomic
        )
        self._flushed = max(self._flushed, page.flushed)
        rows, complete, ends = page.rows, page.complete, True
        too_large: Mapping[int, Refusal] = {}
        if self._atomic and rows:
            await self._learn(rows, complete=complete)
            taken, ends = self._closure.cut(rows, complete=complete)
            complete, rows = complete and taken == len(rows), rows[:taken]
            too_large = self._closure.too_large(transactions(rows))
            if self._stamps is not None:
                rows = self._stamps.stamped(rows, self._closure.lengths)
        last_id = rows[-1][0] if rows else None
        within = self._windows.advance(snapshot=page.snapshot, last_id=last_id, complete=complete)
        self._tracking.send(len(rows))
        if self._windows.next.within is None:
            self._tracking.end_window(within)
        if rows:
            self._held_records += len(rows)
            self._pieces.append(piece := Piece(rows, within, page.written, ends, too_large))
            self._held_bytes += piece.bytes
            self._wake.set()
        return bool(rows)

    async def _learn(self, rows: Sequence[OutboxRow], *, complete: bool) -> None:
        """Know the lengths of all transactions in these rows; in a window's last page all of them end."""
        unknown = self._closure.unknown(rows)
        lengths = {} if complete or not unknown else await self._table.lengths(unknown)
        self._closure.learn({**lengths_in(rows, unknown), **lengths})  # others may have deleted records meanwhile

    async def _publish(self) -> None:
        while not self._stopping.is_set():
            if len(self._unpurged) >= _MAX_UNPURGED:
                self._settled_some.clear()
                await self._settled_some.wait()
            elif self._due:
                rows, self._due = self._due, ()
                await self._publish_parked(rows)
            elif self._pieces:
                await self._publish_batch()
            else:
                self._wake.clear()
                await self._wake.wait()
        self._all_committed = True
        self._committed.set()

    async def _publish_batch(self) -> None:
        batch = Batch()
        self._dividing.begin()
        while (piece := await self._piece_for(batch)) is not None:
            refusals = await self._refusals(piece.rows)
            diversion = self._dividing.divert(piece.rows, refusals, too_large=piece.too_large)
            if diversion:
                self._last_diversion = self._ledger.next_batch
            await self._send(batch, diversion.published)
            batch.divert(piece, diversion)
        if not batch.may_end:
            return  # asked to stop; the open transaction will never be committed
        if self._flushed < batch.written:
            self._flushed = await self._table.flush(batch.written)
        await self._commit(batch)
        self._caution.forget(batch.parked.refused, parked=False)
        self._dividing.committed()
        self._caution.succeeded()

    async def _publish_parked(self, due: Sequence[OutboxRow]) -> None:
        refusals = await self._refusals(due, parked=True)
        lengths = await self._table.parked_lengths(transactions(due)) if self._atomic else {}
        retry = self._dividing.due(due, refusals, lengths=lengths)
        if retry.refused or retry.others:
            await self._table.note_refusals(self.view, retry.refused, others=retry.others)
        if retry.refused:
            self._caution.forget(retry.refused, parked=True)
            if self._parked.admit(retry.passed):
                self._release_after(self._last_diversion)
            report_retried(self._report, topics=Counter(), refused=retry.refused)
        published = retry.published[: self._caution.records if not self._atomic else None]
        if not published:
            if self._atomic and len(due) == self._due_records:  # perhaps the first transaction alone is longer
                self._due_records *= 2
            return self._attended.set()
        self._due_records = self._limits.batch_records
        if self._stamps is not None:
            published = self._stamps.stamped(published, lengths)
        batch = Batch(unparked=[row[0] for row in published])
        await self._send(batch, published, parked=True)
        await self._commit(batch)
        self._parked.gone((row[1], row[2]) for row in published)
        self._release_after(self._ledger.published.batch)
        self._caution.succeeded()

    def _release_after(self, batch: int) -> None:
        self._releasing = max(batch, self._releasing or 0)

    async def _refusals(self, rows: Sequence[OutboxRow], *, parked: bool = False) -> Mapping[int, Refusal]:
        refusals = await self._log.examine(rows, again=parked)
        return {**self._caution.condemned[parked], **refusals} if self._caution.condemned[parked] else refusals

    async def _send(self, batch: Batch, rows: Sequence[OutboxRow], *, parked: bool = False) -> None:
        if rows:
            try:
                batch.add(await self._log.publish(rows))
            except RecordsRefusedError as error:
                ids = error.records or [row[0] for row in rows]
                self._caution.failed(ids, error.reason, explained=error.explained, parked=parked)
                if self._atomic and not error.explained and len(together := transactions(rows)) == 1:
                    self._caution.condemned_transactions |= together
                raise

    async def _piece_for(self, batch: Batch) -> Piece | None:
        """What else belongs into the batch, or fits into it and is there; at most as much as caution allows."""
        while not self._pieces and not batch.may_end and not self._stopping.is_set():
            self._wake.clear()
            await self._wake.wait()
        most = min(self._limits.batch_records, self._caution.records)
        if not self._pieces or (batch.may_end and self._stopping.is_set()):
            return None
        if batch.may_end and batch.records + len(self._pieces[0].rows) > most:
            return None
        piece = self._pieces.popleft()
        if len(piece.rows) > most and piece.ends:
            most = closed_prefix(piece.rows, most=most) if self._atomic else most
            if most < len(piece.rows):
                piece, rest = piece.divided(most)
                self._pieces.appendleft(rest)
        self._held_records -= len(piece.rows)
        self._held_bytes -= piece.bytes
        self._room_made.set()
        return piece

    async def _commit(self, batch: Batch) -> None:
        entry = batch.entry(self._ledger.next_batch, view=self.view, fence=self._fence)
        highest_id = batch.highest_id
        offset = await self._log.commit(self._ledger.records(entry, highest_id=highest_id))
        batch.witness = self._ledger.committed(entry, offset=offset, highest_id=highest_id)
        self._unpurged.append((entry, batch))
        self._unpurged_records += batch.records
        self._decided.append(batch)
        self._track()
        self._committed.set()

    def _track(self) -> None:
        """Count batches as published: once committed, and when records were parked, once those can be seen there."""
        while self._decided and (self._decided[0].is_settled or not self._decided[0].parked):
            self._tracking.flush(self._decided.popleft().read)

    async def _settle(self) -> None:
        while self._unpurged or not self._all_committed:
            if not self._unpurged:
                self._committed.clear()
                await self._committed.wait()
                continue
            entry, batch = self._unpurged[0]
            assert batch.witness is not None
            watermark = self._tracking.watermark
            announced = watermark if entry.runs and watermark != self._announced else None
            await self._complete(entry, watermark=announced)
            if batch.witness.offset <= self._ledger.settled.offset:  # not before, for the batch is committed
                raise HistoryError("the ledger's topic was deleted and made anew")
            self._announced = announced or self._announced
            self._ledger.settled = batch.witness
            batch.is_settled = True
            self._track()
            self._tracking.purge(batch.witness.batch, batch.read, batch.topics)
            self._unpurged.popleft()
            self._unpurged_records -= batch.records
            self._count(batch.topics)
            report_parked(self._report, batch.parked)
            if batch.unparked:
                report_retried(self._report, topics=batch.topics, refused={})
            self._settled_some.set()
            if batch.unparked:
                self._attended.set()

    async def _attend(self) -> None:
        while True:
            await asyncio.sleep(ATTENDING_INTERVAL)
            if not self._parked or self.request.paused:
                continue
            if discarded := await self._table.discard_requested(self.view):
                self._parked.gone(discarded)
                self._release_after(self._last_diversion)
                report_discarded(self._report, discarded)
            if self._releasing is not None and self._ledger.settled.batch >= self._releasing:
                self._releasing = None
                if await self._table.release(self.view, max_records=self._limits.batch_records):
                    self._release_after(0)
            self._attended.clear()
            self._due = await self._table.parked_due(max_records=self._due_records, of_all_lanes=self._atomic)
            if self._due:
                self._wake.set()
                await self._attended.wait()  # what is under way would be found due again

    def _to_witness(self) -> Witness | None:
        return self._ledger.settled if self._ledger.settled != self._ledger.witnessed else None

    def _to_account(self) -> Flushed | None:
        flushed = self._tracking.account
        return flushed if flushed != self._accounted else None

    def _told(self, pulse: Pulse, witness: Witness | None, flushed: Flushed | None) -> None:
        # Held against what was known when the question left: ids are drawn and published while the answer is on its
        # way.
        self._ledger.witnessed = witness or self._ledger.witnessed
        self._accounted = flushed or self._accounted
        self._ledger.beats = pulse.beats
        require_pulse(self._fence, pulse, highest_id=self._ledger.witnessed.highest_id)


class SettlingTerm(ExactlyOnceTerm):
    """Completes what was committed exactly once, before the outbox is harvested in another mode."""

    async def run(self) -> None:
        await self.recover()
