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
- *attending* looks once a second for parked records that are to be published now or discarded (`harvest.parked_retry`);
- *catching up*, while a cluster is owed records and an operator asks for it, gives it what it missed
  (`harvest.catch_up`).

In a busy stream a batch costs two statements, each a round trip to Postgres: a read and a purge. It costs three round
trips to Kafka, one after the other: the records, the ledger's records, the commit. Each step below says what it adds,
and when. Heartbeats and looks at the fence come once a second (`harvest.term`).

Any failure or uncertainty ends the term at once. Nothing is assumed about the work under way: the next view recovers.
There is nothing to roll back, since nothing was marked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from uuid import UUID

from airflow_outbox.harvest.catch_up import CatchUp
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.logs import Logs, at_once
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.parked_retry import ParkedRetry
from airflow_outbox.harvest.ports import Events, Table, TransactionalLogFactory
from airflow_outbox.harvest.protocol.atomic_batches import Closure
from airflow_outbox.harvest.protocol.atomic_parking import WholeTransactions
from airflow_outbox.harvest.protocol.batch_size import Pace
from airflow_outbox.harvest.protocol.batches import Batch, Piece
from airflow_outbox.harvest.protocol.commitment import PRIMARY, Commitment
from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.harvest.protocol.ledger import Entry
from airflow_outbox.harvest.protocol.ledger_state import LedgerState
from airflow_outbox.harvest.protocol.parking import Caution, SingleRecords
from airflow_outbox.harvest.protocol.recovery import require_pulse
from airflow_outbox.harvest.protocol.transaction_headers import StampNames, Stamps
from airflow_outbox.harvest.read_buffer import ReadBuffer
from airflow_outbox.harvest.reading import Reading
from airflow_outbox.harvest.recovery import Recovered, fence_rest
from airflow_outbox.harvest.sending import Sending
from airflow_outbox.harvest.settling import Settling, bound_owed
from airflow_outbox.harvest.term import Term
from airflow_outbox.harvest.wal_flush import WalFlush
from airflow_outbox.values.fence import Flushed, LedgerPosition, OperatorRequest, Pulse
from airflow_outbox.values.metrics import Stage
from airflow_outbox.values.pages import Length, OutboxRow

_SHARE_OF_TIMEOUT = 0.8  # of the time that Kafka gives a transaction; the rest is for committing it


class ExactlyOnceTerm(Term):
    """Harvests under one view, from where recovery has ended.

    The class is large because it shows a batch's way from read to settle in one place. Each step is a class of its own;
    this one makes them, and says in which order they act.
    """

    def __init__(
        self,
        *,
        view: UUID,
        request: OperatorRequest,
        recovered: Recovered,
        table: Table,
        logs: Logs,
        limits: Limits,
        measures: Measures,
        caution: Caution,
        pace: Pace,
        report: Events,
        atomic: bool = False,
        stamp_names: StampNames | None = None,
        new_logs: Mapping[str, TransactionalLogFactory] | None = None,
    ) -> None:
        """`new_logs` are those of all clusters that are configured, which may be owed records."""
        super().__init__(view=view, request=request, table=table, limits=limits, measures=measures)
        self._fence = fence = recovered.fence
        self._logs = logs
        self._may_reshard = not atomic
        self._caution = caution
        self._accounted = recovered.flushed
        self._ledgers = [LedgerState(view, fence, ledger) for ledger in recovered.ledgers]
        last = recovered.ledgers[PRIMARY].witness.batch
        self._commitment = Commitment(
            last=last, max_records=limits.max_in_flight_records, backups=len(recovered.ledgers) - 1
        )
        self._written: dict[int, tuple[Entry, int]] = {}  # by log, with the highest id, until they are committed
        self._tracking = FlushTracking(recovered.flushed, batch=last)
        self._wal_flush = WalFlush(table, poll_interval=limits.poll_interval)
        self._pieces = ReadBuffer(limits, pace, atomic=atomic, stopping=self._stopping, room_made=self._room_made)
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
            wal_flush=self._wal_flush,
            caution=caution,
            closure=closure,
            stamps=stamps,
        )
        self._sending = Sending(
            view=view,
            table=table,
            logs=logs,
            commitment=self._commitment,
            caution=caution,
            pace=pace,
            measures=measures,
        )
        self._settling = Settling(
            view=view,
            table=table,
            logs=logs,
            ledgers=self._ledgers,
            commitment=self._commitment,
            tracking=self._tracking,
            wal_flush=self._wal_flush,
            reading=self._reading,
            sending=self._sending,
            stopping=self._stopping,
            is_owed=bool(fence.owed),
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
        self._catch_up = CatchUp(
            view=view,
            shard=fence.shard,
            owed=fence.owed.keys(),
            table=table,
            logs=logs,
            new_logs=new_logs or {},
            commitment=self._commitment,
            request=lambda: self.request,
            accounted=lambda: self._ledgers[PRIMARY].witnessed.batch,
            is_busy=lambda: self.in_flight > 0,
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
        owing = [bound_owed(self.view, self._table, self._limits), self._attach()] if self._fence.owed else []
        await self._run(
            [self._read(), self._publish(), self._commit_filled(), self._settle()],
            serving=[self._retry.attend(), fence_rest(self.view, self._table, self._logs), *owing],
        )

    async def _attach(self) -> None:
        """Catch clusters up, until one is to be attached: then this term ends."""
        await self._catch_up.run()
        self.attaches = True
        self.stop()

    async def _read(self) -> None:
        """Read pages while there is room: one statement each, at once until a window is read.

        For a while after records came, a reading itself waits for more. Then looks are ever further apart.
        """
        interval = self._limits.poll_interval
        while not self._stopping.is_set():
            self._room_made.clear()
            paused = self.request.paused and not self._reading.is_streaming
            if paused or not self._pieces.is_room:
                await self._room_made.wait()
            elif await self._read_page():
                interval = self._came()
            elif not self._prompt_time:
                interval = await self._idle(interval)

    async def _read_page(self) -> bool:
        began = self._measures.now()
        found = await self._reading.read_page(wait=self._prompt_time)
        if found:
            self._measures.took(Stage.READ, began)
        return found

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
        dividing.begin(batch.number)
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
            await self._ask_which_wait(piece.rows, self._dividing.parked)
            diversion = self._dividing.divert(piece.rows, refusals, refused=piece.refused, set_aside=piece.set_aside)
            if diversion:
                self._retry.releases.diverted(batch.number)
                if self._dividing.parked.are_answers_old:
                    self._retry.releases.wanted()
            batch.divert(piece, diversion)
            rows += diversion.published
            streaming = piece.streaming
            size += piece.bytes
            piece = await self._pieces.next_for(batch) if self._pieces.has_within(size) else None
        return rows, streaming

    async def _commit_filled(self) -> None:
        """Commit batches in their order."""
        while (batch := await self._sending.filled.get()) is not None:
            await self._wal_flush.require(batch.written)  # one statement, unless the log is on disk, as it mostly is
            await self._commit(batch)
            self._caution.forget(chain(batch.parked.refused, batch.parked.waiting), parked=False)
            self._caution.settled(batch.ids, parked=False)
            self._caution.on_record(batch.condemned, batch.no_longer_slow)
            if batch.may_be_free:
                self._retry.releases.wanted(batch.number)
            self._sending.filled.task_done()
        self._settling.end()

    async def _commit(self, batch: Batch) -> None:
        """Commit on the primary, then on the backups. Costs no statement, and two round trips to Kafka: the entry, the
        commit. With backups the entry is written on all clusters at once, before the first commit: one that refuses it
        does so while nothing is committed. Then each backup adds a round trip.
        """
        began = self._measures.now()
        if len(self._logs) > 1:
            await at_once([self._write_on(log, batch) for log in range(len(self._logs))])
        while due := self._commitment.due(batch.number):
            await at_once([self._commit_on(log, batch) for log in due])
        self._measures.took(Stage.COMMIT, began)
        batch.committed_at = self._measures.now()
        self._settling.committed()

    async def _write_on(self, log: int, batch: Batch) -> None:
        """Write the entry into a log's ledger, ahead of the commit."""
        entry, highest_id = self._written[log] = self._entry_on(log, batch)
        records = self._ledgers[log].records(entry, highest_id=highest_id)
        await self._logs.on(log, lambda _, that: that.write(records, entry=entry))

    async def _commit_on(self, log: int, batch: Batch) -> None:
        """Commit on a log; write the entry into its ledger before, unless it is there."""
        is_written, ledger = log in self._written, self._ledgers[log]
        entry, highest_id = self._written.pop(log) if is_written else self._entry_on(log, batch)
        records = [] if is_written else ledger.records(entry, highest_id=highest_id)
        offset = await self._logs.on(log, lambda _, that: that.commit(records, entry=entry))
        ledger.committed(entry, offset=offset, highest_id=highest_id)
        self._commitment.committed(log, entry, batch)

    def _entry_on(self, log: int, batch: Batch) -> tuple[Entry, int]:
        """A batch's entry in a log's ledger, and the highest id that the sequence had drawn for it."""
        entry = batch.entry(view=self.view, fence=self._fence, log=log)
        return entry, batch.highest_id(self._reading.last_drawn)

    async def _settle(self) -> None:
        """Complete batches in Postgres, in their order."""
        while (committed := await self._settling.next()) is not None:
            entry, batch = committed
            await self._settling.await_readable()  # no request while later transactions tell, else one or a few
            self._measures.took(Stage.READABLE, batch.committed_at)
            began = self._measures.now()
            age = await self._settling.complete(entry, batch)  # one statement; one more each to keep, park, unpark
            self._measures.took(Stage.PURGE, began)
            self._measures.waited(age, records=len(batch.ids))
            self._count(batch.topics)
            self._settling.settled()
            self._retry.settled(batch)

    def _is_over(self, request: OperatorRequest) -> bool:
        reshards = request.shards is not None and self._may_reshard
        return request.handover or reshards

    def _to_witness(self) -> Mapping[str, LedgerPosition]:
        if all(ledger.settled == ledger.witnessed for ledger in self._ledgers):
            return {}
        settled = [ledger.settled for ledger in self._ledgers]
        return dict(zip(self._fence.clusters, settled, strict=True))

    def _to_account(self) -> Flushed | None:
        flushed = self._tracking.account
        if not self._settling.may_announce:
            flushed = flushed.behind(self._accounted)
        return flushed if flushed != self._accounted else None

    def _told(self, pulse: Pulse, witness: Mapping[str, LedgerPosition], flushed: Flushed | None) -> None:
        # Compared with the highest id known when the question left: ids are drawn and published while the answer is on
        # its way.
        for cluster, ledger in zip(self._fence.clusters, self._ledgers, strict=True):
            ledger.witnessed = witness.get(cluster, ledger.witnessed)
            ledger.beats = pulse.beats
        self._accounted = flushed or self._accounted
        require_pulse(self._fence, pulse, highest_id=self._ledgers[PRIMARY].witnessed.highest_id)


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
