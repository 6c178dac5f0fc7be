"""Settling: a committed batch is completed in Postgres as soon as consumers can read it, one batch after the other.

Later transactions tell which batches can be read; if none does, Kafka is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.logs import Logs
from airflow_outbox.harvest.ports import Table
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.commitment import Commitment
from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.harvest.protocol.ledger import Entry, expanded
from airflow_outbox.harvest.protocol.ledger_state import LedgerState
from airflow_outbox.harvest.reading import Reading
from airflow_outbox.harvest.sending import Sending
from airflow_outbox.harvest.term import pause
from airflow_outbox.harvest.wal_flush import WalFlush
from airflow_outbox.values.fence import Purged
from airflow_outbox.values.records import Snapshot

_BOUNDING_INTERVAL = 60.0
_LULL = 0.015
_LONGEST_UNTOLD = 1.0
"""Seconds until Kafka is asked whether a batch can be read: when nothing else is sent (`_LULL`), and at the latest."""


async def complete(
    table: Table, view: UUID, entry: Entry, *, watermark: Snapshot | None = None, is_owed: bool = False
) -> Purged:
    """Carry out a committed entry in Postgres; that may be done already. Announces the watermark with it, unless None.
    `is_owed`: it is kept before, for a cluster that does not count now.

    One statement purges; another one each keeps, parks and unparks, if there is something to. Raises FencedError,
    PostgresError.
    """
    if is_owed:
        await table.keep_owed(view, entry)
    if entry.parked:
        await table.park(view, entry.parked, entry.snapshot)
    if entry.unparked:
        await table.unpark(view, expanded(entry.unparked), batch=entry.batch)
    if not entry.runs:
        return Purged(flushed=0)
    return await table.purge_published(view, entry.ids(), entry.snapshot, watermark=watermark, batch=entry.batch)


async def bound_owed(view: UUID, table: Table, limits: Limits) -> None:
    """Now and then, forget what clusters are owed beyond the limits. Never ends."""
    while True:
        await asyncio.sleep(_BOUNDING_INTERVAL)
        await table.drop_owed(view, seconds=limits.owed_retention, most_bytes=limits.owed_bytes)


class Settling:
    """Settles the committed batches of one term."""

    def __init__(
        self,
        *,
        view: UUID,
        table: Table,
        logs: Logs,
        ledgers: Sequence[LedgerState],
        commitment: Commitment,
        tracking: FlushTracking,
        wal_flush: WalFlush,
        reading: Reading,
        sending: Sending,
        stopping: asyncio.Event,
        is_owed: bool = False,
    ) -> None:
        """`is_owed`: some cluster does not count now, and will get what it misses."""
        self._view = view
        self._is_owed = is_owed
        self._table = table
        self._logs = logs
        self._ledgers = ledgers
        self._commitment = commitment
        self._tracking = tracking
        self._wal_flush = wal_flush
        self._reading = reading
        self._sending = sending
        self._stopping = stopping
        self._announced = tracking.watermark
        self._committed = asyncio.Event()
        self._are_all_committed = False
        self._settled_some = asyncio.Event()

    @property
    def may_announce(self) -> bool:
        """Whether earlier views' commits can be read: they can once all their transactions have ended."""
        return not self._logs.are_unfenced

    def committed(self) -> None:
        """A batch was committed."""
        self._committed.set()

    def end(self) -> None:
        """All batches are committed."""
        self._are_all_committed = True
        self._committed.set()

    async def next(self) -> tuple[Entry, Batch] | None:
        """Wait for the next committed batch; None: all are settled."""
        while (oldest := self._commitment.oldest) is None and not self._are_all_committed:
            self._committed.clear()
            await self._committed.wait()
        return oldest

    async def await_readable(self) -> None:
        """Wait until consumers that read committed can read the next batch. Raises KafkaError.

        In a busy stream later transactions tell. Else Kafka is asked for the stable offsets.
        """
        now = asyncio.get_running_loop().time
        asking_at = now() + _LONGEST_UNTOLD
        while not self._is_readable():
            self._sending.heard.clear()
            patience = asking_at - now() if self._is_busy else _LULL
            if patience > 0 and not self._stopping.is_set():
                await pause(patience, self._sending.heard)
            if not self._sending.heard.is_set():
                await self._logs.await_readable()

    async def complete(self, entry: Entry, batch: Batch) -> float | None:
        """Complete the next batch in Postgres, which consumers can read now. Raises as `complete`, and HistoryError.

        It counts as published from now on, or only afterwards if some of its records must first be in the parked table.
        Returns how many seconds ago a record of it was stashed (None: nobody knows).
        """
        tracking = self._tracking
        if not batch.parked:
            tracking.flush(batch.read)
        watermark = tracking.watermark
        announced = watermark if self.may_announce and entry.runs and watermark != self._announced else None
        purged = await complete(self._table, self._view, entry, watermark=announced, is_owed=self._is_owed)
        self._wal_flush.seen(purged.flushed)
        for ledger in self._ledgers:
            ledger.settle()
        self._announced = announced or self._announced
        if batch.parked:
            tracking.flush(batch.read)
        tracking.purge(batch.number, batch.read, batch.topics)
        self._commitment.complete()
        return purged.age

    def settled(self) -> None:
        """Tell those who wait that a batch is settled."""
        self._settled_some.set()

    async def await_some(self) -> None:
        """Wait until a batch is settled."""
        self._settled_some.clear()
        await self._settled_some.wait()

    def _is_readable(self) -> bool:
        for log in range(len(self._logs)):
            self._commitment.readable(log, self._logs.readable(log))
        return self._commitment.may_complete

    @property
    def _is_busy(self) -> bool:
        """Whether the next transactions will soon tell which earlier ones can be read."""
        return not self._commitment.is_far_ahead and (self._sending.is_filling or self._reading.is_amid_window)
