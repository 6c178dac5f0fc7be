"""Bugs of several clusters: what holds of one of them is taken for all, or done in another order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

from simulation.log import SimulatedTransactionalLog
from simulation.table import SimulatedTable

from airflow_outbox.harvest import catching_up, recovery
from airflow_outbox.harvest.catching_up import CatchingUp
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.logs import Logs
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.commitment import PRIMARY, Commitment
from airflow_outbox.harvest.protocol.ledger import Entry, Ledger
from airflow_outbox.harvest.protocol.recovery import Recovery
from airflow_outbox.harvest.recovery import RecoveryTerm
from airflow_outbox.harvest.settling import Settling
from airflow_outbox.values.fence import Fence, LedgerRow
from airflow_outbox.values.pages import OutboxRow
from airflow_outbox.values.records import Snapshot


class BackupsFirst(Commitment):
    """Commits on the backups before the primary."""

    def due(self, batch: int) -> Sequence[int]:
        if any(log.prepared < batch or log.committed < batch - 1 for log in self._logs):
            return []
        lacking = [number for number, log in enumerate(self._logs) if log.committed < batch]
        return [number for number in lacking if number != PRIMARY] or lacking


class CompletesUnread(Commitment):
    """Completes a batch in Postgres when it can be read on the primary."""

    @property
    def may_complete(self) -> bool:
        return self._completed < self._logs[PRIMARY].readable


class PurgesBeforeAll(ExactlyOnceTerm):
    """Purges a batch when the primary has it."""

    async def _commit_on(self, log: int, batch: Batch) -> None:
        await super()._commit_on(log, batch)
        if log == PRIMARY:
            await self._table.purge_published(self.view, batch.ids, batch.within)


class ReadsBeforeItFences(RecoveryTerm):
    """Reads the ledgers, and fences older producers after that."""

    _early: Any = None

    async def run(self) -> None:
        self._early = await super()._ledgers()
        await super().run()

    async def _ledgers(self) -> Any:
        early, self._early = self._early, None
        return early or await super()._ledgers()


def completes_nowhere(found: Mapping[str, Recovery], *, is_promoted: bool) -> None:
    """Believes that all clusters have what the primary has."""


class ReplaysBackwards(SimulatedTable):
    """Publishes a batch in another order when it completes it on a cluster."""

    async def committed_rows(
        self, ids: Sequence[int], unparked: Sequence[int], snapshot: Snapshot
    ) -> Sequence[OutboxRow]:
        rows = await SimulatedTable.committed_rows(self, ids, unparked, snapshot)
        return rows[::-1]


class ReplaysUnrecorded(SimulatedTable):
    """Completes a batch by producers that no successor knows of."""

    async def note_producers(self, view: UUID, cluster: str, transactional_ids: Sequence[str]) -> None:
        return None


def under_its_own_view(entry: Entry, *others: Any, view: UUID, **settings: Any) -> Any:
    """Gives a batch another identity when it completes it on a cluster."""
    return _replay(replace(entry, view=view), *others, view=view, **settings)


class FencesOnlyThePrimary(SimulatedTransactionalLog):
    """Producers on backups that no successor knows of."""

    numbers = count()

    async def fence(self, others: Collection[str] = ()) -> None:
        if self._broker.is_backup:
            for producer in self.producers:
                producer.transactional_id += f" {next(self.numbers)}"
            return await self.rotation.fence()
        await SimulatedTransactionalLog.fence(self, others)


def joins_by_number(one: Entry, other: Entry | None) -> bool:
    """Takes a batch for another one with the same number."""
    return True


def owes_nothing(fence: Fence, ledger: Ledger, published: Mapping[int, Entry], *, last: int) -> Recovery:
    """Believes that an owed cluster has what the others have."""
    found = _owed_from(fence, ledger, published, last=last)
    return replace(found, witness=replace(found.witness, batch=last))


class KeepsNothing(SimulatedTable):
    """Keeps nothing for clusters that do not count."""

    async def keep_owed(self, view: UUID, entry: Entry) -> None:
        return None


class OwesBackwards(SimulatedTable):
    """Gives a cluster the records of a batch in another order than others have them."""

    async def owed_rows(self, batch: int) -> Sequence[OutboxRow]:
        return (await SimulatedTable.owed_rows(self, batch))[::-1]


async def completes_unkept(settling: Settling, entry: Entry, batch: Batch) -> float | None:
    """Keeps only what recovery completes."""
    settling._is_owed = False
    return await _complete(settling, entry, batch)


def from_the_wrong_ledger(found: Mapping[str, Recovery], *, is_promoted: bool) -> Any:
    """Completes on a cluster what its own ledger ends with."""
    lacking = _incomplete(found, is_promoted=is_promoted)
    if lacking is None:
        return None
    entry, numbers = lacking
    own = [*found.values()][numbers[0]].unpurged
    return own[-1] if own else entry, numbers


def gets_all(catching_up: CatchingUp, entry: Entry, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
    """Gives a cluster once more what it has alone."""
    return rows


async def waits_for_nothing(catching_up: CatchingUp) -> bool:
    """Lets a cluster count while records that it has alone are yet to be published on all."""
    return False


async def believes_it_is_whole(whole: Any, catching_up: CatchingUp) -> Any:
    """Promotes a cluster that lacks what it is owed."""
    return await whole._row(catching_up)


async def takes_all_for_accounted(catching_up: CatchingUp, *, witnessed: int | None = None) -> LedgerRow:
    """Believes that a leader has accounted for all that a promoted cluster got."""
    return await _row(catching_up)


def finds_no_difference(fence: Fence, head: Any) -> Sequence[str]:
    """Takes another outbox's ledger for this one's."""
    return ()


class CountsReplays(Logs):
    """Takes a batch that recovery has committed for one of the term's."""

    def replayed(self, number: int) -> None:
        return None


_replay, _owed_from = recovery.replay, catching_up.owed_from


def keeps_the_request(_: object) -> None:
    """Leaves another number of shards asked for, which nobody can bring about while a cluster does not count."""


_complete, _incomplete, _row = Settling.complete, recovery.incomplete, CatchingUp.row
