"""Bugs in the engine itself: `bugs` says what rule each breaks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from simulation.statements import Server

from airflow_outbox.errors import FencedError, PostgresError
from airflow_outbox.harvest import recovery
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.harvester import Harvester
from airflow_outbox.harvest.pieces import Pieces
from airflow_outbox.harvest.protocol import windows
from airflow_outbox.harvest.protocol.atomic_batches import Closure, Taken
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.ledger import Ledger
from airflow_outbox.harvest.protocol.parking import Caution, ParkedLanes
from airflow_outbox.harvest.reading import Reading
from airflow_outbox.values.fence import Fence
from airflow_outbox.values.pages import Length, OutboxRow, PageSnapshot
from airflow_outbox.values.records import Snapshot

# The term


class PurgesBeforeCommit(ExactlyOnceTerm):
    async def _commit(self, batch: Any) -> None:
        await self._table.purge_published(self.view, batch.ids, batch.within)
        await super()._commit(batch)


class WitnessesEarly(ExactlyOnceTerm):
    """Says in the ledger that Postgres knows of purges which it has not recorded."""

    async def _commit(self, batch: Any) -> None:
        self._ledger.witnessed = self._ledger.settled
        await super()._commit(batch)


class BuriesEarly(ExactlyOnceTerm):
    """Deletes the ledger's entries of batches that may not be purged yet."""

    async def _commit(self, batch: Any) -> None:
        self._ledger.witnessed = replace(self._ledger.witnessed, batch=self._ledger.published.batch)
        await super()._commit(batch)


class ParksFirst(ExactlyOnceTerm):
    async def _commit(self, batch: Any) -> None:
        if batch.parked.refused or batch.parked.waiting:
            await self._table.park(self.view, batch.parked.groups(), batch.within)
        await super()._commit(batch)


def never(lanes: ParkedLanes, lane: Any) -> bool:
    return False


def untold(batch: Batch, *, view: UUID, fence: Fence) -> Any:
    return _entry(replace(batch, unparked=[]), view=view, fence=fence)


def forget_lanes(lanes: ParkedLanes, gone: Any) -> None:
    for lane in gone:
        lanes._waiting.pop(lane, None)


def together(_: Caution, rows: Sequence[Any], *, parked: bool) -> Iterator[Sequence[Any]]:
    yield rows


_entry = Batch.entry


class Remembers(Reading):
    """Goes on where an earlier term of this process had got to in the table."""

    def __init__(self, first: PageSnapshot, *, table: Any, **settings: Any) -> None:
        super().__init__(first, table=table, **settings)
        if not hasattr(table, "windows"):
            table.windows = self._windows
        self._windows = table.windows


class CommitsWhenStopped(Pieces):
    """Commits what it has of a source transaction when it is asked to stop."""

    async def next_for(self, batch: Any) -> Any:
        piece = await super().next_for(batch)
        return piece and replace(piece, ends=True)


def forgets_ledger(fence: Fence, ledger: Ledger) -> Any:
    return replace(_recover(fence, ledger), unpurged=())


def ignores_incarnations(fence: Fence, ledger: Ledger) -> Any:
    head = ledger.head and replace(ledger.head, incarnation=fence.incarnation)
    entries = tuple(replace(entry, incarnation=fence.incarnation) for entry in ledger.entries)
    return _recover(fence, replace(ledger, head=head, entries=entries))


def reuses_numbers(fence: Fence, ledger: Ledger) -> Any:
    found = _recover(fence, ledger)
    return replace(found, witness=replace(found.witness, batch=fence.witness.batch))


def believes_all(fence: Fence, ledger: Ledger) -> Any:
    with patch("airflow_outbox.harvest.protocol.recovery.differences", lambda *_: ()):
        return _recover(fence, ledger)


_recover = recovery.recover


# Windows


class _Windows(windows.Windows, ABC):
    def advance(self, *, snapshot: Snapshot, last_id: int | None, complete: bool) -> Snapshot:
        within = super().advance(snapshot=snapshot, last_id=last_id, complete=complete)
        self.next = self.changed(snapshot, last_id)
        return within

    @abstractmethod
    def changed(self, snapshot: Snapshot, last_id: int | None) -> PageSnapshot:
        """What to read next, by a rule that is wrong."""


class ReadsByIds(_Windows):
    highest = 0

    def changed(self, snapshot: Snapshot, last_id: int | None) -> PageSnapshot:
        self.highest = max(self.highest, last_id or 0)
        return PageSnapshot(above=self.highest)


class ForgetsInProgress(_Windows):
    def changed(self, snapshot: Snapshot, last_id: int | None) -> PageSnapshot:
        after = self.next.after and replace(self.next.after, in_progress=frozenset())
        return replace(self.next, after=after)


class PagesFreely(windows.Windows):
    """Reads a window's next pages as of now, and takes the last one's snapshot for the window's."""

    def advance(self, *, snapshot: Snapshot, last_id: int | None, complete: bool) -> Snapshot:
        more = not complete and last_id is not None
        self.next = PageSnapshot(after=self.next.after, above=last_id or 0) if more else PageSnapshot(after=snapshot)
        return snapshot


class CutsAnywhere(Closure):
    def take(self, page: Sequence[OutboxRow], *, complete: bool) -> Taken:
        return Taken(page, ends=True)


def no_others(rows: Sequence[OutboxRow], waiting: Collection[int]) -> set[int]:
    return set(waiting)


def as_parked(server: Server, transaction_ids: Collection[int]) -> dict[int, Length]:
    found = _parked_lengths(server, transaction_ids)
    waiting = [row.transaction_id for row in server.database.state.parked.values() if not row.discarded]
    return {number: replace(length, records=waiting.count(number)) for number, length in found.items()}


def nothing(_: Server) -> set[int]:
    return set()


_parked_lengths = Server.parked_lengths


# The tables


def as_loaded(loaded: int | None, own: int) -> int:
    return own if loaded is None else loaded


# The member


class Duels(Harvester):
    """Takes over again from whoever has fenced it."""

    async def _take_over(self, view: UUID) -> Fence:
        self._views = []
        return await super()._take_over(view)

    async def _run_term(self, view: UUID) -> bool:
        try:
            return await super()._run_term(view)
        except FencedError as error:
            self._events("fenced")
            raise PostgresError("simulated: fenced") from error
