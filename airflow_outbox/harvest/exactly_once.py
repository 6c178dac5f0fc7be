"""One term of harvesting exactly once: read → publish → commit → settle, with a ledger in Kafka, no row marks.

It begins where recovery has ended (`harvest.recovery`): all records in the table are unpublished, and no older view can
change anything. Then activities overlap: while batch n is being committed, n+2 is read, n+1 is sent and n-1 is purged.

- *reading* follows the windows (`protocol.windows`), as far as the bounds leave room;
- *publishing* sends the rows in id order, in one Kafka transaction a batch, by producers that take turns
  (`protocol.turns`). A record that can't be published is left out with the later ones of its lane (`protocol.parking`).
  A producer with a new epoch may have fenced a successor: the fence row is read before it sends anything;
- *committing* writes the batch's entry into the ledger and commits, one batch after the other (`protocol.commitment`).
  It commits only records that are on Postgres' disk: a record that a crash of Postgres would undo must not be in Kafka;
- *settling* deletes the records of the batches that consumers can read, and moves those that were left out into the
  parked table, one batch after the other. Later transactions tell which batches can be read; if none does, Kafka is
  asked;
- *attending* looks once a second for parked records that are to be published now or discarded (`harvest.parked_retry`).

In a busy stream a batch costs two statements, each a round trip to Postgres: a read and a purge. It costs three round
trips to Kafka, one after the other: the records, the ledger's records, the commit. Each step below says what it adds,
and when. Heartbeats and looks at the fence come once a second (`harvest.term`).

Any failure or uncertainty ends the term at once. Nothing is assumed about the work under way: the next view recovers.
There is nothing to roll back, since nothing was marked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from uuid import UUID

from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.durability import Durability
from airflow_outbox.harvest.parked_retry import ParkedRetry
from airflow_outbox.harvest.pieces import Pieces
from airflow_outbox.harvest.ports import Events, Table, TransactionalLog
from airflow_outbox.harvest.protocol.atomic_batches import Closure
from airflow_outbox.harvest.protocol.atomic_parking import WholeTransactions
from airflow_outbox.harvest.protocol.batch_size import Pace
from airflow_outbox.harvest.protocol.batches import Batch, Piece
from airflow_outbox.harvest.protocol.commitment import Commitment
from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.harvest.protocol.ledger_state import LedgerState
from airflow_outbox.harvest.protocol.parking import Caution, SingleRecords
from airflow_outbox.harvest.protocol.recovery import require_pulse
from airflow_outbox.harvest.protocol.transaction_headers import StampNames, Stamps
from airflow_outbox.harvest.reading import Reading
from airflow_outbox.harvest.recovery import Recovered, fence_rest
from airflow_outbox.harvest.sending import Sending
from airflow_outbox.harvest.settling import Settling
from airflow_outbox.harvest.term import Term
from airflow_outbox.values.fence import Flushed, LedgerPosition, OperatorRequest, Pulse
from airflow_outbox.values.pages import Length, OutboxRow

_SHARE_OF_TIMEOUT = 0.8  # of the time that Kafka gives a transaction; the rest is for committing it


class ExactlyOnceTerm(Term):
    """Harvests under one view, from where recovery has ended."""

    def __init__(
        self,
        *,
        view: UUID,
        request: OperatorRequest,
        recovered: Recovered,
        table: Table,
        log: TransactionalLog,
        limits: Limits,
        published: Counter[str],
        caution: Caution,
        pace: Pace,
        report: Events,
        atomic: bool = False,
        stamp_names: StampNames | None = None,
    ) -> None:
        super().__init__(view=view, request=request, table=table, limits=limits, published=published)
        self._fence = fence = recovered.fence
        self._log = log
        self._caution = caution
        self._accounted = recovered.flushed
        self._ledger = LedgerState(view, fence, recovered.ledger)
        last = recovered.ledger.witness.batch
        self._commitment = Commitment(last=last, max_records=limits.max_in_flight_records)
        self._tracking = FlushTracking(recovered.flushed, batch=last)
        self._durability = Durability(table, poll_interval=limits.poll_interval)
        self._pieces = Pieces(limits, pace, atomic=atomic, stopping=self._stopping, room_made=self._room_made)
        self._dividing: SingleRecords | WholeTransactions = SingleRecords(recovered.parked)
        stamps = Stamps(stamp_names, outbox_id=fence.outbox_id) if atomic and stamp_names else None
        closure: Closure | None = None
        if atomic:
            self._dividing, closure = _whole_transactions(recovered, caution, limits)
        self._reading = Reading(
            recovered.first_reading,
            fence=fence,
            table=table,
            pieces=self._pieces,
            tracking=self._tracking,
            durability=self._durability,
            caution=caution,
            closure=closure,
            stamps=stamps,
        )
        self._sending = Sending(
            view=view, table=table, log=log, commitment=self._commitment, caution=caution, pace=pace
        )
        self._settling = Settling(
            view=view,
            table=table,
            log=log,
            ledger=self._ledger,
            commitment=self._commitment,
            tracking=self._tracking,
            durability=self._durability,
            reading=self._reading,
            sending=self._sending,
            stopping=self._stopping,
        )
        self._retry = ParkedRetry(
            view=view,
            table=table,
            batch_records=limits.batch_records,
            dividing=self._dividing,
            caution=caution,
            stamps=stamps,
            pieces=self._pieces,
            sending=self._sending,
            commitment=self._commitment,
            report=report,
            is_paused=lambda: self.request.paused,
        )

    @property
    def in_flight(self) -> int:
        return self._pieces.records + self._commitment.records

    def stop(self) -> None:
        for event in (self._stopping, self._room_made, self._pieces.came):
            event.set()
        self._retry.stop()
        self._sending.heard.set()

    async def run(self) -> None:
        await self._run(
            [self._read(), self._publish(), self._commit_filled(), self._settle()],
            serving=[self._retry.attend(), fence_rest(self.view, self._table, self._log)],
        )

    async def _read(self) -> None:
        """Read pages while there is room: one statement each, at once until a window is read, then after a wait."""
        interval = self._limits.poll_interval
        while not self._stopping.is_set():
            self._room_made.clear()
            paused = self.request.paused and not self._reading.is_streaming
            if paused or not self._pieces.is_room:
                await self._room_made.wait()
            elif await self._reading.read_page():
                interval = self._came()
                if not self._reading.is_amid_window:  # all that was there has been read
                    await self._idle(interval)
            else:
                interval = await self._idle(interval)

    async def _publish(self) -> None:
        """Send batches, one after the other: parked records that are due, or what was read. Waiting costs nothing."""
        while not self._stopping.is_set():
            if self._commitment.is_far_ahead:
                await self._settling.await_some()
            elif self._retry.is_due:
                await self._retry.publish()
            elif self._pieces:
                await self._publish_batch()
            else:
                await self._pieces.wait()
        await self._sending.end()

    async def _publish_batch(self) -> None:
        """Fill a Kafka transaction with a page of records, or more while source transactions have more to come.

        Costs no statement, and one round trip to Kafka: the records go out together, and this waits until Kafka has
        them. Another one comes first, because a transaction's partitions have to be added to it.
        """
        # Waits for the commit before the last one, of the same producer. A new epoch costs a statement.
        batch, loop = await self._sending.begin(), asyncio.get_running_loop()
        began, most_seconds = loop.time(), _SHARE_OF_TIMEOUT * self._limits.transaction_timeout
        dividing = self._dividing
        dividing.begin()
        while not batch.may_end and (piece := await self._pieces.next_for(batch)) is not None:
            rows, streaming = await self._gather(batch, piece)
            await self._sending.send(batch, rows)
            dividing.require_end(streaming, records=batch.read, seconds=loop.time() - began, most_seconds=most_seconds)
        if not batch.may_end:
            return  # asked to stop; the open transaction will never be committed
        batch.condemned, batch.no_longer_slow = dividing.condemned, dividing.no_longer_slow
        batch.may_be_free = dividing.may_be_free
        await self._sending.hand_over(batch)

    async def _gather(self, batch: Batch, piece: Piece | None) -> tuple[Sequence[OutboxRow], Mapping[int, Length]]:
        """Return the rows to send, and the transactions with more rows to come. Kafka is asked in doubt only.

        The rows are those of a piece and of the pieces waiting behind it that fit into a page. Rows that come while
        they are sent belong to the next batch: otherwise a stream would never end one.
        """
        rows: list[OutboxRow] = []
        size = 0
        streaming: Mapping[int, Length] = {}
        while piece is not None:
            refusals = await self._sending.refusals(piece.rows)
            diversion = self._dividing.divert(piece.rows, refusals, refused=piece.refused, set_aside=piece.set_aside)
            if diversion:
                self._retry.releases.diverted(batch.number)
            batch.divert(piece, diversion)
            rows += diversion.published
            streaming = piece.streaming
            size += piece.bytes
            piece = await self._pieces.next_for(batch) if self._pieces.has_within(size) else None
        return rows, streaming

    async def _commit_filled(self) -> None:
        """Commit batches in their order."""
        while (batch := await self._sending.filled.get()) is not None:
            await self._durability.require(batch.written)  # one statement, unless the log is on disk, as it mostly is
            await self._commit(batch)
            self._caution.forget(chain(batch.parked.refused, batch.parked.waiting), parked=False)
            self._caution.settled(batch.ids, parked=False)
            self._caution.on_record(batch.condemned, batch.no_longer_slow)
            if batch.may_be_free:
                self._retry.releases.wanted(batch.number)
            self._sending.filled.task_done()
        self._settling.end()

    async def _commit(self, batch: Batch) -> None:
        """Write the entry into the ledger, and commit: two round trips to Kafka, no statement."""
        entry = batch.entry(view=self.view, fence=self._fence)
        highest_id = batch.highest_id(self._reading.last_drawn)
        [log] = self._commitment.due(batch.number)  # there is one log so far
        offset = await self._log.commit(self._ledger.records(entry, highest_id=highest_id))
        self._ledger.committed(entry, offset=offset, highest_id=highest_id)
        self._commitment.committed(log, entry, batch)
        self._settling.committed()

    async def _settle(self) -> None:
        """Complete batches in Postgres, in their order."""
        while (committed := await self._settling.next()) is not None:
            entry, batch = committed
            await self._settling.await_readable()  # no request while later transactions tell, else one or a few
            await self._settling.complete(entry, batch)  # one statement; one more each to park and to unpark
            self._count(batch.topics)
            self._settling.settled()
            self._retry.settled(batch)

    def _to_witness(self) -> LedgerPosition | None:
        return self._ledger.settled if self._ledger.settled != self._ledger.witnessed else None

    def _to_account(self) -> Flushed | None:
        flushed = self._tracking.account
        if not self._settling.may_announce:
            flushed = flushed.behind(self._accounted)
        return flushed if flushed != self._accounted else None

    def _told(self, pulse: Pulse, witness: LedgerPosition | None, flushed: Flushed | None) -> None:
        # Compared with the highest id known when the question left: ids are drawn and published while the answer is on
        # its way.
        self._ledger.witnessed = witness or self._ledger.witnessed
        self._accounted = flushed or self._accounted
        self._ledger.beats = pulse.beats
        require_pulse(self._fence, pulse, highest_id=self._ledger.witnessed.highest_id)


def _whole_transactions(recovered: Recovered, caution: Caution, limits: Limits) -> tuple[WholeTransactions, Closure]:
    """Return what keeps source transactions together: as they are published, and as they are read."""
    most = limits.max_transaction_records
    whole = WholeTransactions(
        recovered.parked, caution, max_transaction_records=most, parked_in_part=recovered.parked_in_part
    )
    closure = Closure(  # holds back a third of the bounds, so that a page always has room
        max_transaction_records=most,
        max_held_records=limits.max_in_flight_records // 3,
        max_held_bytes=limits.max_in_flight_bytes // 3,
        condemned=whole.condemned_before,
    )
    return whole, closure
