"""Bugs in what a member asks of Postgres and Kafka: see `planted`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

from simulation.kafka import LEDGER
from simulation.log import SimulatedTransactionalLog
from simulation.table import SimulatedTable

from airflow_outbox.errors import KafkaError, PostgresUnreachableError
from airflow_outbox.fence import Fence
from airflow_outbox.harvest.protocol.ledger import Extent, LedgerRecord
from airflow_outbox.pages import OutboxRow
from airflow_outbox.records import Snapshot

EVERYTHING = Snapshot(2**63, 2**63)

# What a member asks of Postgres


class Unfenced(SimulatedTable):
    """Statements that don't look at the fence row."""

    def _fenced(self, view: UUID) -> UUID | None:
        return None

    async def require_fence(self, view: UUID) -> None:
        return None


class PurgesByRange(SimulatedTable):
    """Deletes everything from the first id to the last."""

    async def purge_published(self, view: UUID, ids: Sequence[int], snapshot: Snapshot, **news: Any) -> int:
        return await SimulatedTable.purge_published(self, view, range(min(ids), max(ids) + 1), EVERYTHING, **news)


class PurgesUnseen(SimulatedTable):
    """Deletes by ids alone."""

    async def purge_published(self, view: UUID, ids: Sequence[int], snapshot: Snapshot, **news: Any) -> int:
        return await SimulatedTable.purge_published(self, view, ids, EVERYTHING, **news)


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

    async def purge_published(self, view: UUID, ids: Sequence[int], snapshot: Snapshot, **news: Any) -> int:
        try:
            return await SimulatedTable.purge_published(self, view, ids, snapshot, **news)
        except PostgresUnreachableError:
            self._purging.backend = self._server.connect()
            return 0


# What a member asks of Kafka


class FencesLate(SimulatedTransactionalLog):
    """Reads the ledger before it fences the producers of earlier views."""

    async def fence(self, transactional_id: str) -> None:
        self._fenced = False

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        await self._fence_at_last()
        return await SimulatedTransactionalLog.publish(self, rows)

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        await self._fence_at_last()
        return await SimulatedTransactionalLog.commit(self, records)

    async def _fence_at_last(self) -> None:
        if not self._fenced:
            await SimulatedTransactionalLog.fence(self, self.transactional_id)
            self._fenced = True


class FencesNobody(SimulatedTransactionalLog):
    """A producer that no other knows of."""

    numbers = count()

    async def fence(self, transactional_id: str) -> None:
        if self._epoch < 0:
            self.transactional_id += str(next(self.numbers))
            await SimulatedTransactionalLog.fence(self, self.transactional_id)


class LedgerApart(SimulatedTransactionalLog):
    """Commits the records, and then the ledger's in a transaction of their own."""

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        await self._ask("end", lambda: self._broker.end(self.transactional_id, self._epoch, committed=True))
        return await SimulatedTransactionalLog.commit(self, records)


class LedgerFirst(SimulatedTransactionalLog):
    """Commits the ledger's records with no transaction at all."""

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        broker = self._broker
        for key, value in records:
            await self._ask("ledger", lambda key=key, value=value: broker.append(LEDGER, key, value))  # type: ignore[misc]
        await self._ask("end", lambda: broker.end(self.transactional_id, self._epoch, committed=True))
        return broker.partition(LEDGER).end - 1


class TakesCommitForFailed(SimulatedTransactionalLog):
    """Publishes again, as a new producer, when a commit is not answered."""

    _sent: Sequence[OutboxRow] = ()  # in the transaction that is under way

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        self._sent = [*self._sent, *rows]
        return await SimulatedTransactionalLog.publish(self, rows)

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        sent, self._sent = self._sent, ()
        try:
            return await SimulatedTransactionalLog.commit(self, records)
        except KafkaError:
            await self.fence(self.transactional_id)
            await SimulatedTransactionalLog.publish(self, sent)
            return await SimulatedTransactionalLog.commit(self, records)


class TakesCommitForDone(SimulatedTransactionalLog):
    """Goes on when a commit is not answered."""

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        try:
            return await SimulatedTransactionalLog.commit(self, records)
        except KafkaError:
            return self._broker.partition(LEDGER).end
