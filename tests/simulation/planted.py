"""Bugs in the engine itself: `bugs` says what rule each breaks."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from simulation.postgres import Database
from simulation.statements import Server

from airflow_outbox.errors import FencedError, PostgresError
from airflow_outbox.harvest import recovery
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.leadership import Leadership
from airflow_outbox.harvest.parked_retry import ParkedRetry
from airflow_outbox.harvest.protocol import windows
from airflow_outbox.harvest.protocol.atomic_batches import Closure, Taken
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.commitment import PRIMARY
from airflow_outbox.harvest.protocol.ledger import Ledger
from airflow_outbox.harvest.protocol.parking import Caution, ParkedLanes
from airflow_outbox.harvest.read_buffer import ReadBuffer
from airflow_outbox.harvest.reading import Reading
from airflow_outbox.harvest.term import ATTENDING_INTERVAL
from airflow_outbox.values.fence import Fence
from airflow_outbox.values.pages import Cursors, Length, OutboxRow, PageSnapshot
from airflow_outbox.values.records import Snapshot

# The term


class PurgesBeforeCommit(ExactlyOnceTerm):
    async def _commit(self, batch: Any) -> None:
        await self._table.purge_published(self.view, batch.ids, batch.within)
        await super()._commit(batch)


class WitnessesEarly(ExactlyOnceTerm):
    """Says in the ledger that Postgres knows of purges which it has not recorded."""

    async def _commit(self, batch: Any) -> None:
        for ledger in self._ledgers:
            ledger.witnessed = ledger.settled
        await super()._commit(batch)


class BuriesEarly(ExactlyOnceTerm):
    """Deletes the ledger's entries of batches that may not be purged yet."""

    async def _commit(self, batch: Any) -> None:
        for ledger in self._ledgers:
            ledger.witnessed = replace(ledger.witnessed, batch=ledger.published.batch)
        await super()._commit(batch)


class ParksFirst(ExactlyOnceTerm):
    async def _commit(self, batch: Any) -> None:
        if batch.parked.refused or batch.parked.waiting:
            await self._table.park(self.view, batch.parked.groups(), batch.within)
        await super()._commit(batch)


class CommitsAtOnce(ExactlyOnceTerm):
    """Commits a batch before the one before it is committed. Kafka may get the later commit first, or only that."""

    async def _commit_filled(self) -> None:
        async def commit(batch: Any, before: asyncio.Task[None] | None) -> None:
            entry = batch.entry(view=self.view, fence=self._fence)
            highest_id = batch.highest_id(self._reading.last_drawn)
            [ledger] = self._ledgers
            offset = await self._logs[PRIMARY].commit(ledger.records(entry, highest_id=highest_id))
            if before is not None:
                await before
            ledger.committed(entry, offset=offset, highest_id=highest_id)
            self._commitment.committed(PRIMARY, entry, batch)
            self._settling.committed()
            self._sending.filled.task_done()

        tasks: list[asyncio.Task[None]] = []
        try:
            while (batch := await self._next_filled(tasks)) is not None:
                await self._wal_flush.require(batch.written)
                tasks = [*tasks[-1:], asyncio.create_task(commit(batch, tasks[-1] if tasks else None))]
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        self._settling.end()

    async def _next_filled(self, tasks: Sequence[asyncio.Task[None]]) -> Any:
        """The next batch to commit. Raises the error of a commit that has failed meanwhile."""
        getting = asyncio.create_task(self._sending.filled.get())
        await asyncio.wait([getting, *[task for task in tasks if not task.done()]], return_when=FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return await getting


class DiscardsOnItsWay(ParkedRetry):
    """Discards what is asked for also while parked records are on their way to Kafka."""

    async def attend(self) -> None:
        async def discard() -> None:
            while True:
                await asyncio.sleep(ATTENDING_INTERVAL)
                await self._table.discard_requested(self._view)

        discarding = asyncio.create_task(discard())
        try:
            await super().attend()
        finally:
            discarding.cancel()


def never(lanes: ParkedLanes, lane: Any) -> bool:
    return False


def untold(batch: Batch, **named: Any) -> Any:
    return _entry(replace(batch, unparked=[]), **named)


def forget_lanes(lanes: ParkedLanes, gone: Any, **settled: Any) -> None:
    """Takes a lane in memory for empty when one of its records is gone. Postgres forgets none of the others."""
    records = Counter(gone)
    for topic, key in records:
        records[topic, key] = max(records[topic, key], lanes._waiting.get(topic, Counter())[key])
    _gone(lanes, records.elements(), **settled)


def forget_diverted(lanes: ParkedLanes) -> None:
    lanes._diverted.clear()
    _begin_asking(lanes)


def together(_: Caution, rows: Sequence[Any], *, parked: bool) -> Iterator[Sequence[Any]]:
    yield rows


_entry = Batch.entry
_gone = ParkedLanes.gone
_begin_asking = ParkedLanes.begin_asking


class Remembers(Reading):
    """Goes on where an earlier term of this process had got to in the table."""

    def __init__(self, first: PageSnapshot, *, table: Any, **settings: Any) -> None:
        super().__init__(first, table=table, **settings)
        if not hasattr(table, "windows"):
            table.windows = self._windows
        self._windows = table.windows


class CommitsWhenStopped(ReadBuffer):
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
    def advance(
        self, *, snapshot: Snapshot, last_id: int | None, complete: bool, cursors: Cursors | None = None
    ) -> Snapshot:
        within = super().advance(snapshot=snapshot, last_id=last_id, complete=complete, cursors=cursors)
        self.next = self.changed(snapshot, last_id)
        return within

    @abstractmethod
    def changed(self, snapshot: Snapshot, last_id: int | None) -> PageSnapshot:
        """The next page to read, by a rule that is wrong."""


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

    def advance(
        self, *, snapshot: Snapshot, last_id: int | None, complete: bool, cursors: Cursors | None = None
    ) -> Snapshot:
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


# Postgres


def asynchronously(database: Database, change: str, *values: Any) -> None:
    """Commits the harvester's statements as a role does whose `synchronous_commit` is off."""
    flushed = database.flushed
    _statement(database, change, *values)
    if change not in ("exchange", "load"):
        database.flushed = flushed


_statement = Database.statement


def as_loaded(loaded: int | None, own: int) -> int:
    return own if loaded is None else loaded


# The member


class Duels(Leadership):
    """Takes over again from whoever has fenced it."""

    async def _take_over(self, view: UUID) -> Fence:
        self._views = []
        return await super()._take_over(view)

    async def _run_term(self, view: UUID) -> bool:
        try:
            return await super()._run_term(view)
        except FencedError as error:
            self._events("fenced", shard=self.shard)
            raise PostgresError("simulated: fenced") from error
