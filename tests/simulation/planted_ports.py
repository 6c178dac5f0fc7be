"""Bugs in what a member asks of Postgres and Kafka: see `planted`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from simulation.kafka import LEDGER
from simulation.log import ReconfiguredLog, SimulatedTransactionalLog
from simulation.producer import SimulatedProducer
from simulation.table import SimulatedTable

from airflow_outbox.errors import KafkaError, PostgresUnreachableError
from airflow_outbox.harvest.protocol.extents import ExtentsToWrite
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, LedgerRecord
from airflow_outbox.harvest.protocol.producer_state import Call, ProducerState
from airflow_outbox.values.fence import Fence, Purged
from airflow_outbox.values.pages import OutboxRow, Page, PageSnapshot
from airflow_outbox.values.records import Snapshot

EVERYTHING = Snapshot(2**63, 2**63)

# A member's requests to Postgres


class Unfenced(SimulatedTable):
    """Statements that don't look at the fence row."""

    def _fenced(self, view: UUID) -> UUID | None:
        return None

    async def require_fence(self, view: UUID) -> None:
        return None


class PurgesByRange(SimulatedTable):
    """Deletes everything from the first id to the last."""

    async def purge_published(self, view: UUID, ids: Sequence[int], snapshot: Snapshot, **news: Any) -> Purged:
        return await SimulatedTable.purge_published(self, view, range(min(ids), max(ids) + 1), EVERYTHING, **news)


class PurgesUnseen(SimulatedTable):
    """Deletes by ids alone."""

    async def purge_published(self, view: UUID, ids: Sequence[int], snapshot: Snapshot, **news: Any) -> Purged:
        return await SimulatedTable.purge_published(self, view, ids, EVERYTHING, **news)


class ReadsBeyond(SimulatedTable):
    """Reads a window's next pages without its upper bound: also records that became visible since."""

    async def read(self, reading: PageSnapshot, **bounds: Any) -> Page:
        return await SimulatedTable.read(self, replace(reading, within=None), **bounds)


class ReadsBeforeRecovery(SimulatedTable):
    """Reads the first page of a term while batches of earlier views are in the table."""

    _early: Page | None = None

    async def fence(self, view: UUID) -> Fence:
        bounds = {"max_records": 12, "max_bytes": 10**6, "transaction_ids": False}
        self._early = self._early or await SimulatedTable.read(self, PageSnapshot(), **bounds)
        return await SimulatedTable.fence(self, view)

    async def read(self, reading: PageSnapshot, **bounds: Any) -> Page:
        early, self._early = self._early, None
        return early or await SimulatedTable.read(self, reading, **bounds)


class BeginsLate(SimulatedTable):
    """Begins a term after all that is visible, and not after what is known to be published."""

    async def first_reading(self, watermark: Snapshot | None) -> PageSnapshot:
        page = await self.read(PageSnapshot(), max_records=1, max_bytes=1, transaction_ids=False)
        return PageSnapshot(after=page.snapshot)


class NeverHalts(SimulatedTable):
    """Forgets that another history was found."""

    async def halt(self, view: UUID, reason: str) -> None:
        return None


class TellsNoBeats(SimulatedTable):
    """A fence row in which neither beats nor the last view that began can be compared."""

    async def fence(self, view: UUID) -> Fence:
        return replace(await SimulatedTable.fence(self, view), beats=2**62, begun_view=None)


class NeverFlushes(SimulatedTable):
    """Takes what is visible for durable."""

    async def flush(self, position: int) -> int:
        return position


class ForgetsPurges(SimulatedTable):
    """Takes a purge without an answer for done."""

    async def purge_published(self, view: UUID, ids: Sequence[int], snapshot: Snapshot, **news: Any) -> Purged:
        try:
            return await SimulatedTable.purge_published(self, view, ids, snapshot, **news)
        except PostgresUnreachableError:
            self._purging.backend = self._server.connect()
            return Purged(flushed=0)


# A member's requests to Kafka


class FencesLate(SimulatedTransactionalLog):
    """Reads the ledger before it fences the producers of earlier views."""

    _has_fenced = False

    async def fence(self, others: Collection[str] = ()) -> None:
        self._others = others

    async def begin(self) -> bool:
        if not self._has_fenced:
            self._has_fenced = True
            await SimulatedTransactionalLog.fence(self, self._others)
        return await SimulatedTransactionalLog.begin(self)


class FencesNobody(SimulatedTransactionalLog):
    """Producers that no other knows of."""

    async def fence(self, others: Collection[str] = ()) -> None:
        for producer in self.producers:
            producer.transactional_id += f" {next(self._broker.opened)}"
        await self.rotation.fence()


class FencesOne(SimulatedTransactionalLog):
    """Producers of which only the first is known to others."""

    async def fence(self, others: Collection[str] = ()) -> None:
        for producer in self.producers[1:]:
            producer.transactional_id += f" {next(self._broker.opened)}"
        await SimulatedTransactionalLog.fence(self)


class ForgetsOthers(ReconfiguredLog):
    """Fences the producers that it will use itself, and no others that earlier views have used."""

    async def fence(self, others: Collection[str] = ()) -> None:
        await SimulatedTransactionalLog.fence(self)


class TrustsItsRenewal(SimulatedTransactionalLog):
    """Does not say that a producer has a new epoch, so nobody reads the fence row."""

    async def begin(self) -> bool:
        await SimulatedTransactionalLog.begin(self)
        return False


class TakesDecidedForReadable(SimulatedTransactionalLog):
    """Takes for readable what the coordinator has decided."""

    _commits = 0

    @property
    def readable(self) -> int:
        return self._commits

    async def commit(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> int:
        offset = await SimulatedTransactionalLog.commit(self, records, entry=entry)
        self._commits += 1
        return offset


class _KeepsItsEpoch(SimulatedProducer):
    gap = float("inf")


class KeepsItsEpoch(SimulatedTransactionalLog):
    """Begins the next transaction in the epoch of one of which a request may still come."""

    producer = _KeepsItsEpoch


class _LedgerApart(SimulatedProducer):
    async def commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> int:
        epoch = self.epoch
        await self._ask("end", lambda: self._broker.end(self.transactional_id, epoch, committed=True))
        self._added.clear()
        return await SimulatedProducer.commit(self, records)


class LedgerApart(SimulatedTransactionalLog):
    """Commits the records, and then the ledger's in a transaction of their own."""

    producer = _LedgerApart


class _LedgerFirst(SimulatedProducer):
    async def commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> int:
        broker, epoch = self._broker, self.epoch
        with self._timed(Call.COMMIT):
            for key, value in records:
                await self._ask("ledger", lambda key=key, value=value: broker.append(LEDGER, key, value))  # type: ignore[misc]
            await self._ask("end", lambda: broker.end(self.transactional_id, epoch, committed=True))
            self._added.clear()
        return broker.partition(LEDGER).end - 1


class LedgerFirst(SimulatedTransactionalLog):
    """Commits the ledger's records with no transaction at all."""

    producer = _LedgerFirst


class _TakesCommitForFailed(SimulatedProducer):
    _sent: Sequence[OutboxRow] = ()  # in the transaction that is under way

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        self._sent = [*self._sent, *rows]
        return await SimulatedProducer.publish(self, rows, partitions)

    async def commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> int:
        sent, self._sent = self._sent, ()
        try:
            return await SimulatedProducer.commit(self, records)
        except KafkaError:
            self._added.clear()
            await self.renew()
            await SimulatedProducer.publish(self, sent)
            return await SimulatedProducer.commit(self, records)


class TakesCommitForFailed(SimulatedTransactionalLog):
    """Publishes again, as a new producer, when a commit is not answered."""

    producer = _TakesCommitForFailed


class _TakesCommitForDone(SimulatedProducer):
    async def commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> int:
        try:
            return await SimulatedProducer.commit(self, records)
        except KafkaError:
            self._transaction.state = ProducerState.READY
            self._added.clear()
            return self._broker.partition(LEDGER).end


class TakesCommitForDone(SimulatedTransactionalLog):
    """Goes on when a commit is not answered."""

    producer = _TakesCommitForDone
