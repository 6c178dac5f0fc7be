"""Parked retry: once a second, a term looks for parked records to discard, to release and to publish.

    attend: look ──► discard ──► release ──► records are due ──► publish: a batch of their own ──► settled ──► look on
                                                  └──► refused again: noted, and due later

Attending only looks, and so overlaps with everything else. Publishing takes its turn among the batches. While records
are under way nothing is looked for: they would be found due again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from airflow_outbox.harvest.parking_events import report_discarded, report_parked, report_retried
from airflow_outbox.harvest.ports import Events, Table
from airflow_outbox.harvest.protocol.atomic_batches import transactions
from airflow_outbox.harvest.protocol.atomic_parking import WholeTransactions
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.commitment import Commitment
from airflow_outbox.harvest.protocol.parking import Caution, SingleRecords
from airflow_outbox.harvest.protocol.releases import Releases
from airflow_outbox.harvest.protocol.transaction_headers import Stamps
from airflow_outbox.harvest.read_buffer import ReadBuffer
from airflow_outbox.harvest.sending import Sending
from airflow_outbox.harvest.term import ATTENDING_INTERVAL
from airflow_outbox.values.pages import ID, KEY, TOPIC, OutboxRow, total_size
from airflow_outbox.values.refusals import Refusal


class ParkedRetry:
    """One term's care for the parked table.

    At most `batch_records` are tried at a time; in an `atomic` outbox more, if a source transaction needs it.

    The class is large because it works with the other steps of the term: most of its attributes are given by these.
    """

    def __init__(
        self,
        *,
        view: UUID,
        table: Table,
        batch_records: int,
        dividing: SingleRecords | WholeTransactions,
        caution: Caution,
        stamps: Stamps | None,
        pieces: ReadBuffer,
        sending: Sending,
        commitment: Commitment,
        report: Events,
        is_paused: Callable[[], bool],
    ) -> None:
        self.releases = Releases()
        self._view = view
        self._table = table
        self._batch_records = batch_records
        self._dividing = dividing
        self._caution = caution
        self._stamps = stamps
        self._pieces = pieces
        self._sending = sending
        self._commitment = commitment
        self._report = report
        self._is_paused = is_paused
        self._due: tuple[Sequence[OutboxRow], Mapping[int, Refusal]] = (), {}
        self._due_records = batch_records
        self._attended = asyncio.Event()
        self._is_stopped = False

    @property
    def is_due(self) -> bool:
        """Whether there are records to publish now."""
        return bool(self._due[0])

    def stop(self) -> None:
        """Attend no more: what is in flight may still be in the table, and can't be discarded."""
        self._is_stopped = True
        self._attended.set()

    async def attend(self) -> None:
        """Look once a second. Never ends. Raises FencedError, KafkaError, PostgresError.

        Two statements look, and a third one releases. None is made while nothing is parked, and during a pause.
        """
        while True:
            await asyncio.sleep(ATTENDING_INTERVAL)
            if self._is_stopped or not self._dividing.parked or self._is_paused():
                continue
            while not self._is_stopped and (discarded := await self._table.discard_requested(self._view)):
                self._dividing.parked.gone(discarded)
                self.releases.wanted()
                report_discarded(self._report, discarded)
            if self.releases.take(self._commitment.completed) and await self._table.release(
                self._view, max_records=self._batch_records
            ):
                self.releases.wanted(0)  # there may be more
            self._attended.clear()
            due = await self._table.parked_due(
                max_records=self._due_records, max_bytes=self._due_bytes, of_all_lanes=self._is_atomic
            )
            self._due = due, await self._sending.refusals(due, parked=True) if due else {}
            if due:
                self._pieces.came.set()
                await self._attended.wait()
            else:
                self._due_records = self._batch_records
                self._caution.end_retry()

    async def publish(self) -> None:
        """Publish the due records that can be, and wait until they are committed. Note which are refused again.

        Costs a batch, and one statement more if some are refused. An `atomic` outbox needs another one for the
        transactions' lengths. Raises FencedError, KafkaError, PostgresError.
        """
        (due, refusals), self._due = self._due, ((), {})
        lengths = await self._table.parked_lengths(transactions(due)) if self._is_atomic else {}
        retry = self._dividing.due(due, refusals, lengths=lengths)
        if retry.refused or retry.others:
            await self._table.note_refusals(self._view, retry.refused, others=retry.others)
        are_all = not self._is_atomic or (len(due) < self._due_records and total_size(due) < self._due_bytes)
        if retry.refused:
            self._caution.refused_again(retry.refused)
            if self._dividing.parked.admit(retry.passed):
                self.releases.wanted()
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
        await self._sending.committed()
        batch = await self._sending.begin(unparked=[row[ID] for row in published])
        await self._sending.send(batch, published, parked=True)
        await self._sending.hand_over(batch)
        await self._sending.committed()
        lanes = ((row[TOPIC], row[KEY]) for row in published)
        self._dividing.parked.gone(lanes, unparked={batch.number: batch.unparked})
        self.releases.wanted(batch.number)
        self._caution.settled(batch.unparked, parked=True)
        if are_all:  # else later ones are tried next, and refusals found stay known
            self._caution.end_retry()

    def settled(self, batch: Batch) -> None:
        """A batch is settled: report what it has parked, or published from the parked table, and look on."""
        self._dividing.parked.settled(batch.number)
        report_parked(self._report, batch.parked)
        if batch.unparked:
            report_retried(self._report, topics=batch.topics, refused={})
            self._attended.set()

    @property
    def _is_atomic(self) -> bool:
        return isinstance(self._dividing, WholeTransactions)

    @property
    def _due_bytes(self) -> int:
        """Bytes of parked records to publish together; more only if a source transaction needs it."""
        return self._pieces.page_bytes * max(1, self._due_records // self._batch_records)
