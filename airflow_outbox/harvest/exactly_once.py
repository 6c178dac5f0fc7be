"""One term of harvesting exactly once: recover, then read → publish → purge, with a ledger in Kafka, no row marks.

Recovering comes first, in this order, and each step relies on the ones before it:

1. the fence row names this view (the caller has taken over): no older view's statement can change anything any more;
2. a glimpse of the ledger is compared with the fence row: a copy of the database disturbs no original;
3. the log fences every older producer, by all transactional ids that were used since they were last fenced: no older
   view's transaction can be committed any more, and none is open;
4. the ledger is read up to its end, so it is complete for all views before this one;
5. fence row and ledger are compared (`protocol.recovery`): unless they belong to one history, nothing happens;
6. committed batches that are not known to be purged are purged. All records in the table are now unpublished;
7. the transactional ids that this term will use are recorded in the fence row.

Then activities overlap: while batch n is being committed, n+2 is read, n+1 is sent and n-1 is purged.

- *reading* follows the windows (`protocol.windows`), as far as the bounds leave room;
- *publishing* sends the rows in id order, in one Kafka transaction a batch, by producers that take turns
  (`protocol.turns`). A record that can't be published is left out with the later ones of its lane (`protocol.parking`).
  A producer with a new epoch may have fenced a successor: the fence row is read before it sends anything;
- *committing* writes the batch's entry into the ledger and commits, one batch after the other. It commits only records
  that are on Postgres' disk: a record that a crash of Postgres would undo must not be in Kafka;
- *settling* deletes the records of the batches that consumers can read, and moves those that were left out into the
  parked table, one batch after the other. Later transactions tell which batches can be read; if none does, Kafka is
  asked;
- *attending* looks once a second for parked records that are to be published now or discarded.

Any failure or uncertainty ends the term at once. Nothing is assumed about the work under way: the next view recovers.
There is nothing to roll back, since nothing was marked.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from uuid import UUID

from airflow_outbox.errors import HistoryError, KafkaError, RecordsRefusedError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.parking_events import report_discarded, report_parked, report_retried
from airflow_outbox.harvest.ports import Events, Table, TransactionalLog
from airflow_outbox.harvest.protocol.atomic_batches import Closure, Taken, lengths_in, transactions
from airflow_outbox.harvest.protocol.atomic_parking import WholeTransactions, closed_prefix
from airflow_outbox.harvest.protocol.batch_size import Pace
from airflow_outbox.harvest.protocol.batches import Batch, Piece
from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.harvest.protocol.ledger import Entry, expanded
from airflow_outbox.harvest.protocol.ledger_state import LedgerState
from airflow_outbox.harvest.protocol.parking import Caution, ParkedLanes, SingleRecords
from airflow_outbox.harvest.protocol.recovery import (
    Recovery,
    recover,
    require_given_up,
    require_no_rival,
    require_page,
    require_pulse,
)
from airflow_outbox.harvest.protocol.transaction_headers import StampNames, Stamps
from airflow_outbox.harvest.protocol.windows import Windows
from airflow_outbox.harvest.term import ATTENDING_INTERVAL, Term
from airflow_outbox.values.fence import Fence, Flushed, LedgerPosition, Pulse, recorded_ids
from airflow_outbox.values.pages import Length, OutboxRow, Page, count_within, total_size
from airflow_outbox.values.records import Snapshot
from airflow_outbox.values.refusals import Cause, Refusal

DELIVERY = "exactly_once"
_MAX_UNPURGED = 6  # batches, or more where they are small
_MAX_UNPURGED_SMALL = 64
_LULL = 0.015
_LONGEST_UNTOLD = 1.0
"""Seconds until Kafka is asked whether a batch can be read: when nothing else is sent (`_LULL`), and at the latest."""
_LOOKS_FOR_DISK = 2
_FENCING_INTERVAL = 1.0
_LONGEST_LOOK = 0.003  # seconds
_SHARE_OF_TIMEOUT = 0.8  # of the time that Kafka gives a transaction; the rest is for committing it


class ExactlyOnceTerm(Term):
    """Harvests under one view. Its take-over found `fence`."""

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
        pace: Pace,
        report: Events,
        own_views: Collection[UUID] = (),
        atomic: bool = False,
        stamp_names: StampNames | None = None,
    ) -> None:
        super().__init__(view=view, request=fence.request, table=table, limits=limits, published=published)
        self._fence = fence
        self._log = log
        self._own_views = own_views
        self._report = report
        self._atomic = atomic
        self._windows = Windows()
        self._tracking = FlushTracking(fence.flushed)
        self._announced = fence.flushed.watermark
        self._accounted = fence.flushed
        self._stamps = Stamps(stamp_names, outbox_id=fence.outbox_id) if atomic and stamp_names else None
        self._pieces: deque[Piece] = deque()
        self._unpurged: deque[tuple[Entry, Batch]] = deque()
        self._decided: deque[Batch] = deque()
        self._filled: asyncio.Queue[Batch | None] = asyncio.Queue()  # sent, and to be committed
        self._is_sending = False
        self._begun = 0  # the number of the batch that was begun last
        self._commits = 0
        self._held_records = 0
        self._held_bytes = 0
        self._unpurged_records = 0
        self._flushed = 0
        self._file_number: int | None = None
        self._last_drawn = fence.last_drawn
        self._page_bytes = -(-limits.max_in_flight_bytes // 3)
        self._ledger = LedgerState(view, fence, Recovery(fence.witness, (), ()))
        self._caution = caution
        self._pace = pace
        self._take_up(ParkedLanes({}, ()))
        self._due: Sequence[OutboxRow] = ()  # parked records to publish now
        self._due_refusals: Mapping[int, Refusal] = {}
        self._due_records = limits.batch_records
        self._last_diversion = 0  # the batch in which something was diverted last
        self._releasing: int | None = 0  # when this batch is settled, free records are released
        self._attended = asyncio.Event()
        self._wake = asyncio.Event()
        self._committed = asyncio.Event()
        self._heard = asyncio.Event()  # a transaction has told which earlier ones can be read
        self._settled_some = asyncio.Event()
        self._all_committed = False

    @property
    def in_flight(self) -> int:
        return self._held_records + self._unpurged_records

    @property
    def _due_bytes(self) -> int:
        """Bytes of parked records to publish together; more only if a source transaction needs it."""
        return self._page_bytes * max(1, self._due_records // self._limits.batch_records)

    @property
    def _is_far_ahead(self) -> bool:
        """Whether publishing has to wait: too much is committed and not purged."""
        batches, are_small = len(self._unpurged), self._unpurged_records < self._limits.max_in_flight_records
        return batches >= (_MAX_UNPURGED_SMALL if are_small else _MAX_UNPURGED)

    @property
    def witness(self) -> LedgerPosition:
        """The position in the ledger when all that is committed is settled."""
        return self._ledger.published

    def stop(self) -> None:
        for event in (self._stopping, self._room_made, self._wake, self._attended, self._heard):
            event.set()

    async def run(self) -> None:
        await self.recover()
        await self._begin_reading()
        await self._run(
            [self._read(), self._publish(), self._commit_filled(), self._settle()],
            serving=[self._attend(), self._fence_rest()],
        )

    async def recover(self) -> None:
        """Complete what earlier views have committed. Raises FencedError, HistoryError, KafkaError, PostgresError."""
        glimpse = await self._log.glimpse(self._fence.witness.offset)
        require_no_rival(await self._table.fence(self.view), glimpse)
        await self._log.fence(self._fence.producers)
        ledger = await self._log.ledger(self._fence.witness.offset)
        self._fence = await self._table.fence(self.view)  # again: older views could commit until the log was fenced
        require_given_up(self._fence, self._log.unfenced, own_views=self._own_views)
        recovery = recover(self._fence, ledger)
        await self._require_readable(entry for entry in recovery.unpurged if entry.unparked)
        for entry in recovery.unpurged:
            await self._complete(entry)
        flushed = self._fence.flushed.with_more(entry.topics() for entry in recovery.unpurged)
        await self._table.begin(
            self.view,
            delivery=DELIVERY,
            witness=recovery.witness,
            transactional_ids=recorded_ids(self._log.transactional_ids, given_up=self._log.unfenced),
            flushed=flushed,
        )
        self._tracking, self._accounted, self._announced = (
            FlushTracking(flushed, batch=recovery.witness.batch),
            flushed,
            flushed.watermark,
        )
        self._ledger = LedgerState(self.view, self._fence, recovery)
        self._begun = recovery.witness.batch
        in_part = await self._table.parked_in_part() if self._atomic else ()
        self._take_up(ParkedLanes(*await self._table.parked_lanes()), parked_in_part=in_part)

    async def _require_readable(self, retried: Iterable[Entry]) -> None:
        """Raise KafkaError when records committed from the parked table can't be read yet.

        The watermark has passed them: they would count as published as soon as they are no longer parked.
        """
        for entry in retried if self._log.unfenced else ():
            if not await self._log.are_readable(entry.extents):
                topics = " and ".join(sorted(entry.topics()))
                raise KafkaError(
                    f"parked records were published, but can't be read yet: too few brokers are up for a partition "
                    f"of {topics}. Bring them back"
                )

    async def _begin_reading(self) -> None:
        self._windows = Windows(await self._table.first_reading(self._accounted.watermark))

    def _take_up(self, parked: ParkedLanes, *, parked_in_part: Collection[int] = ()) -> None:
        self._parked = parked
        self._dividing: SingleRecords | WholeTransactions = SingleRecords(parked)
        most = self._limits.max_transaction_records
        if self._atomic:
            self._dividing = whole = WholeTransactions(
                parked, self._caution, max_transaction_records=most, parked_in_part=parked_in_part
            )
            self._closure = Closure(  # holds back a third of the bounds, so that a page always has room
                max_transaction_records=most,
                max_held_records=self._limits.max_in_flight_records // 3,
                max_held_bytes=self._limits.max_in_flight_bytes // 3,
                condemned=whole.condemned_before,
            )

    async def _complete(self, entry: Entry, *, watermark: Snapshot | None = None) -> None:
        """Carry out an entry in Postgres; that may be done already. Announces the watermark with it."""
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
        while not self._stopping.is_set():
            self._room_made.clear()
            records = self._limits.max_in_flight_records - self._held_records
            size = self._limits.max_in_flight_bytes - self._held_bytes
            paused = self.request.paused and not (self._atomic and self._closure.is_streaming)
            if paused or records < page_records or (size < self._page_bytes and self._held_bytes):
                await self._room_made.wait()
            elif await self._read_page(max_records=page_records, max_bytes=self._page_bytes):
                interval = self._came()
                if self._windows.next.within is None:  # all that was there has been read
                    await self._idle(interval)
            else:
                interval = await self._idle(interval)

    async def _read_page(self, *, max_records: int, max_bytes: int) -> bool:
        page = await self._table.read(
            self._windows.next, max_records=max_records, max_bytes=max_bytes, transaction_ids=self._atomic
        )
        self._file_number = require_page(self._fence, page, file_number=self._file_number)
        self._flushed = max(self._flushed, page.flushed)
        read, taken = page.rows, Taken(page.rows, ends=True)
        self._condemn_chosen_ids(page)
        refused: Mapping[int, Refusal] = {}
        if self._atomic and (read or self._closure.held):
            await self._learn(read, complete=page.complete)
            taken = self._closure.take(read, complete=page.complete)
            refused = self._closure.refused(transactions(taken.rows))
        rows = taken.rows
        if self._stamps is not None:
            rows = self._stamps.stamped(rows, self._closure.lengths)
        last_id = read[-1][0] if read else None
        within = self._windows.advance(snapshot=page.snapshot, last_id=last_id, complete=page.complete)
        self._tracking.send(len(rows))  # rows held back are sent before the window's end
        if self._windows.next.within is None:
            self._tracking.end_window(within)
        piece = Piece(rows, within, page.written, taken.ends, refused, taken.streaming, taken.set_aside)
        self._held_records += len(read)
        self._held_bytes += piece.bytes if rows is read else total_size(read)
        if rows:
            self._pieces.append(piece)
            self._wake.set()
        return bool(read)

    def _condemn_chosen_ids(self, page: Page) -> None:
        """Park records with ids that the sequence has not drawn: later it will give these ids to other records."""
        self._last_drawn = max(self._last_drawn, page.last_drawn)
        if page.rows and page.rows[-1][0] > self._last_drawn:
            reason = (
                f"the id was chosen by its writer: it is above the sequence's last one, {self._last_drawn}. "
                "`airflow-outbox parked retry` publishes the record anyway"
            )
            chosen = [row[0] for row in page.rows if row[0] > self._last_drawn]
            self._caution.condemned[False].update(dict.fromkeys(chosen, Refusal(Cause.ID, reason)))

    async def _learn(self, rows: Sequence[OutboxRow], *, complete: bool) -> None:
        """Learn the lengths of all transactions in these rows; all of them end in a window's last page."""
        unknown = self._closure.unknown(rows)
        lengths = {} if complete or not unknown else await self._table.lengths(unknown)
        self._closure.learn({**lengths_in(rows, unknown), **lengths})  # others may have deleted records meanwhile

    async def _publish(self) -> None:
        while not self._stopping.is_set():
            if self._is_far_ahead:
                self._settled_some.clear()
                await self._settled_some.wait()
            elif self._due:
                rows, self._due = self._due, ()
                await self._publish_parked(rows, self._due_refusals)
            elif self._pieces:
                await self._publish_batch()
            else:
                self._wake.clear()
                await self._wake.wait()
        await self._filled.put(None)

    async def _begin_batch(self, *, unparked: Sequence[int] = ()) -> Batch:
        self._is_sending = True
        if await self._log.begin():
            await self._table.require_fence(self.view)
        self._begun += 1
        return Batch(self._begun, unparked=[*unparked])

    async def _fill(self, batch: Batch) -> None:
        self._is_sending = False
        self._heard.set()  # a waiter for the next transaction may have to ask
        await self._filled.put(batch)

    async def _publish_batch(self) -> None:
        batch, loop = await self._begin_batch(), asyncio.get_running_loop()
        began = loop.time()
        self._dividing.begin()
        while not batch.may_end and (piece := await self._piece_for(batch)) is not None:
            rows, streaming = await self._gather(batch, piece)
            await self._send(batch, rows)
            if isinstance(self._dividing, WholeTransactions):
                seconds, most = loop.time() - began, _SHARE_OF_TIMEOUT * self._limits.transaction_timeout
                self._dividing.require_end(streaming, records=batch.read, seconds=seconds, most_seconds=most)
        if not batch.may_end:
            return  # asked to stop; the open transaction will never be committed
        batch.condemned, batch.no_longer_slow = self._dividing.condemned, self._dividing.no_longer_slow
        batch.may_be_free = self._dividing.may_be_free
        await self._fill(batch)

    async def _gather(self, batch: Batch, piece: Piece | None) -> tuple[Sequence[OutboxRow], Mapping[int, Length]]:
        """Return the rows to send, and the transactions with more rows to come.

        The rows are those of a piece and of the pieces waiting behind it that fit into a page. Rows that come while
        they are sent belong to the next batch: otherwise a stream would never end one.
        """
        rows: list[OutboxRow] = []
        size = 0
        streaming: Mapping[int, Length] = {}
        while piece is not None:
            refusals = await self._refusals(piece.rows)
            diversion = self._dividing.divert(piece.rows, refusals, refused=piece.refused, set_aside=piece.set_aside)
            if diversion:
                self._last_diversion = batch.number
            batch.divert(piece, diversion)
            rows += diversion.published
            streaming = piece.streaming
            size += piece.bytes
            has_room = self._pieces and size + self._pieces[0].bytes <= self._page_bytes
            piece = await self._piece_for(batch) if has_room else None
        return rows, streaming

    async def _publish_parked(self, due: Sequence[OutboxRow], refusals: Mapping[int, Refusal]) -> None:
        lengths = await self._table.parked_lengths(transactions(due)) if self._atomic else {}
        retry = self._dividing.due(due, refusals, lengths=lengths)
        if retry.refused or retry.others:
            await self._table.note_refusals(self.view, retry.refused, others=retry.others)
        are_all = not self._atomic or (len(due) < self._due_records and total_size(due) < self._due_bytes)
        if retry.refused:
            self._caution.refused_again(retry.refused)
            if self._parked.admit(retry.passed):
                self._release_after(self._last_diversion)
            report_retried(self._report, topics=Counter(), refused=retry.refused)
        published = retry.published
        if not published:
            if not are_all and not retry.is_early:  # perhaps the first transaction alone is longer
                self._due_records *= 2
            if are_all:
                self._caution.end_retry()
            return self._attended.set()
        if self._stamps is not None:
            published = self._stamps.stamped(published, lengths)
        await self._filled.join()
        batch = await self._begin_batch(unparked=[row[0] for row in published])
        await self._send(batch, published, parked=True)
        await self._fill(batch)
        await self._filled.join()
        self._parked.gone((row[1], row[2]) for row in published)
        self._release_after(batch.number)
        self._caution.settled(batch.unparked, parked=True)
        if are_all:  # else later ones are tried next, and refusals found stay known
            self._caution.end_retry()

    def _release_after(self, batch: int) -> None:
        self._releasing = max(batch, self._releasing or 0)

    async def _refusals(self, rows: Sequence[OutboxRow], *, parked: bool = False) -> Mapping[int, Refusal]:
        refusals = await self._log.examine(rows, again=parked)
        return {**self._caution.condemned[parked], **refusals} if self._caution.condemned[parked] else refusals

    async def _send(self, batch: Batch, rows: Sequence[OutboxRow], *, parked: bool = False) -> None:
        for portion in self._caution.portions(rows, parked=parked):
            began = asyncio.get_running_loop().time()
            try:
                batch.add(await self._log.publish(portion))
                self._pace.took(total_size(portion), seconds=asyncio.get_running_loop().time() - began)
                self._heard.set()
            except RecordsRefusedError as error:
                await self._filled.join()  # records before it are not uncertain
                ids = error.records or [row[0] for row in portion]
                certain = bool(error.records) or len(ids) == 1
                self._caution.failed(ids, error.reason, certain=certain, explained=error.explained, parked=parked)
                raise
            except KafkaError:
                self._pace.failed(total_size(portion), seconds=asyncio.get_running_loop().time() - began)
                raise

    async def _piece_for(self, batch: Batch) -> Piece | None:
        """The next piece that belongs into the batch, or fits into it and is there; None if there is none."""
        while not self._pieces and not batch.may_end and not self._stopping.is_set():
            self._wake.clear()
            await self._wake.wait()
        if not self._pieces or (batch.may_end and self._stopping.is_set()):
            return None
        most, piece = self._limits.batch_records, self._pieces[0]
        if batch.may_end and batch.records + len(piece.rows) > most:
            return None
        if batch.size + piece.bytes > self._pace.max_bytes:
            if batch.may_end:
                return None
            most = min(most, count_within(piece.rows, self._pace.max_bytes))
        self._pieces.popleft()
        if len(piece.rows) > most and piece.ends and (batch.may_end or not batch.read):  # it may end a stream
            most = closed_prefix(piece.rows, most=most) if self._atomic else most
            if most < len(piece.rows):
                piece, rest = piece.divided(most)
                self._pieces.appendleft(rest)
        self._held_records -= len(piece.rows)
        self._held_bytes -= piece.bytes
        self._room_made.set()
        return piece

    async def _commit_filled(self) -> None:
        while (batch := await self._filled.get()) is not None:
            await self._require_on_disk(batch.written)
            await self._commit(batch)
            self._caution.forget(chain(batch.parked.refused, batch.parked.waiting), parked=False)
            self._caution.settled(batch.ids, parked=False)
            self._caution.on_record(batch.condemned, batch.no_longer_slow)
            if batch.may_be_free:
                self._release_after(batch.number)
            self._filled.task_done()
        self._all_committed = True
        self._committed.set()

    async def _require_on_disk(self, position: int) -> None:
        """Wait until Postgres' log is on disk up to there.

        Usually another commit has just brought it there, and the next look for records tells. Asking would wait behind
        a purge.
        """
        for _ in range(_LOOKS_FOR_DISK):
            if self._flushed >= position:
                return
            await asyncio.sleep(min(self._limits.poll_interval, _LONGEST_LOOK))
        if self._flushed < position:
            self._flushed = await self._table.flush(position)

    async def _commit(self, batch: Batch) -> None:
        entry = batch.entry(view=self.view, fence=self._fence)
        highest_id = batch.highest_id(self._last_drawn)
        offset = await self._log.commit(self._ledger.records(entry, highest_id=highest_id))
        batch.witness = self._ledger.committed(entry, offset=offset, highest_id=highest_id)
        self._unpurged.append((entry, batch))
        self._unpurged_records += batch.records
        self._decided.append(batch)
        self._commits += 1
        batch.commit = self._commits
        self._committed.set()

    @property
    def _is_busy(self) -> bool:
        """Whether the next transactions will soon tell which earlier ones can be read."""
        return not self._is_far_ahead and (self._is_sending or self._windows.next.within is not None)

    async def _await_readable(self, batch: Batch) -> None:
        """Wait until consumers that read committed can read a batch."""
        now = asyncio.get_running_loop().time
        asking_at = now() + _LONGEST_UNTOLD
        while self._log.readable < batch.commit:
            self._heard.clear()
            patience = asking_at - now() if self._is_busy else _LULL
            if patience > 0 and not self._stopping.is_set():
                await self._pause(patience, self._heard)
            if not self._heard.is_set():
                await self._log.await_readable()
        batch.is_readable = True
        self._track()

    def _track(self) -> None:
        """Count batches as published: once readable, and, if records were parked, once these can be seen there."""
        while self._decided and (
            self._decided[0].is_settled or (self._decided[0].is_readable and not self._decided[0].parked)
        ):
            self._tracking.flush(self._decided.popleft().read)

    async def _settle(self) -> None:
        while self._unpurged or not self._all_committed:
            if not self._unpurged:
                self._committed.clear()
                await self._committed.wait()
                continue
            entry, batch = self._unpurged[0]
            assert batch.witness is not None
            await self._await_readable(batch)
            watermark = self._tracking.watermark
            announced = watermark if self._may_announce and entry.runs and watermark != self._announced else None
            await self._complete(entry, watermark=announced)
            if batch.witness.offset <= self._ledger.settled.offset:  # not before: the batch is committed
                raise HistoryError("the ledger's topic was deleted and recreated")
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
            due = await self._table.parked_due(
                max_records=self._due_records, max_bytes=self._due_bytes, of_all_lanes=self._atomic
            )
            self._due_refusals = await self._refusals(due, parked=True) if due else {}
            self._due = due
            if self._due:
                self._wake.set()
                await self._attended.wait()  # else records under way would be found due again
            else:
                self._due_records = self._limits.batch_records
                self._caution.end_retry()

    @property
    def _may_announce(self) -> bool:
        """Whether earlier views' commits can be read: they can once all their transactions have ended."""
        return not self._log.unfenced

    async def _fence_rest(self) -> None:
        while True:
            await asyncio.sleep(_FENCING_INTERVAL)
            if self._log.unfenced:
                await self._table.require_fence(self.view)  # a successor may use the ids again
                await self._log.fence_rest()

    def _to_witness(self) -> LedgerPosition | None:
        return self._ledger.settled if self._ledger.settled != self._ledger.witnessed else None

    def _to_account(self) -> Flushed | None:
        flushed = self._tracking.account
        if not self._may_announce:
            flushed = flushed.behind(self._accounted)
        return flushed if flushed != self._accounted else None

    def _told(self, pulse: Pulse, witness: LedgerPosition | None, flushed: Flushed | None) -> None:
        # Compared with the highest id known when the question left: ids are drawn and published while the answer is on
        # its way.
        self._ledger.witnessed = witness or self._ledger.witnessed
        self._accounted = flushed or self._accounted
        self._ledger.beats = pulse.beats
        require_pulse(self._fence, pulse, highest_id=self._ledger.witnessed.highest_id)


class SettlingTerm(ExactlyOnceTerm):
    """Completes batches committed exactly once, before the outbox is harvested in another mode."""

    async def run(self) -> None:
        await self.recover()
