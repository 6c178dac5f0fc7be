"""Bugs, planted on purpose: each breaks one rule of the design in the engine, or in what a member asks of a server, and
never in the world. The histories have to find every one of them; a simulator that does not would prove nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest.mock import patch
from uuid import UUID

from simulation.kafka import LEDGER
from simulation.log import SimulatedTransactionalLog
from simulation.table import SimulatedTable
from simulation.world import SOUND, Design

from airflow_outbox.errors import FencedError, KafkaError, PostgresError, PostgresUnreachableError
from airflow_outbox.fence import Fence
from airflow_outbox.harvest import exactly_once, modes
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.harvester import Harvester
from airflow_outbox.harvest.protocol import windows
from airflow_outbox.harvest.protocol.closure import Closure
from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Ledger, LedgerRecord
from airflow_outbox.pages import OutboxRow, Reading
from airflow_outbox.records import Snapshot


@dataclass(frozen=True, slots=True)
class Bug:
    """`seeds` histories are enough to find it; `kinds` are the complaints that may come of it."""

    name: str
    design: Design = SOUND
    place: object = None
    attribute: str = ""
    value: Any = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug while this lasts."""
        if self.place is None:
            yield
        else:
            with patch.object(self.place, self.attribute, self.value):
                yield


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
        everything = Snapshot(2**63, 2**63)
        return await SimulatedTable.purge_published(self, view, range(min(ids), max(ids) + 1), everything, **news)


class PurgesUnseen(SimulatedTable):
    """Deletes by ids alone."""

    async def purge_published(self, view: UUID, ids: Sequence[int], snapshot: Snapshot, **news: Any) -> int:
        return await SimulatedTable.purge_published(self, view, ids, Snapshot(2**63, 2**63), **news)


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

    async def begin(self) -> None:
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

    async def begin(self) -> None:
        self._sent: list[OutboxRow] = []

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        self._sent += rows
        return await SimulatedTransactionalLog.publish(self, rows)

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        try:
            return await SimulatedTransactionalLog.commit(self, records)
        except KafkaError:
            await self.fence(self.transactional_id)
            await SimulatedTransactionalLog.publish(self, self._sent)
            return await SimulatedTransactionalLog.commit(self, records)


class TakesCommitForDone(SimulatedTransactionalLog):
    """Goes on when a commit is not answered."""

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        try:
            return await SimulatedTransactionalLog.commit(self, records)
        except KafkaError:
            return self._broker.partition(LEDGER).end


# The term


class PurgesBeforeCommit(ExactlyOnceTerm):
    async def _commit(self, batch: Any) -> None:
        await self._table.purge_published(self.view, batch.ids, batch.within)
        await super()._commit(batch)


class WitnessesEarly(ExactlyOnceTerm):
    """Says in the ledger that Postgres knows of purges which it has not recorded."""

    async def _commit(self, batch: Any) -> None:
        self._witnessed = self._purged_witness
        await super()._commit(batch)


class BuriesEarly(ExactlyOnceTerm):
    """Deletes the ledger's entries of batches that may not be purged yet."""

    async def _commit(self, batch: Any) -> None:
        self._witnessed = replace(self._witnessed, batch=self._published_witness.batch)
        await super()._commit(batch)


class ReadsBeforeRecovery(ExactlyOnceTerm):
    """Begins to read while batches of earlier views are in the table."""

    async def recover(self) -> None:
        await self._read_page(max_records=12, max_bytes=10**6)
        await super().recover()


class Remembers(ExactlyOnceTerm):
    """Goes on where an earlier term of this process had got to in the table."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        table = settings["table"]
        if not hasattr(table, "windows"):
            table.windows = self._windows
        self._windows = table.windows


class CommitsWhenStopped(ExactlyOnceTerm):
    """Commits what it has of a source transaction when it is asked to stop."""

    async def _publish_batch(self, first: Any) -> None:
        await super()._publish_batch(replace(first, ends=True))


def _forgets_ledger(fence: Fence, ledger: Ledger) -> Any:
    return replace(_recover(fence, ledger), unpurged=())


def _reuses_numbers(fence: Fence, ledger: Ledger) -> Any:
    found = _recover(fence, ledger)
    return replace(found, witness=replace(found.witness, batch=fence.witness.batch))


def _believes_all(fence: Fence, ledger: Ledger) -> Any:
    with patch("airflow_outbox.harvest.protocol.recovery.differences", lambda *_: ()):
        return _recover(fence, ledger)


_recover = exactly_once.recover


# Windows


class _Windows(windows.Windows):
    def advance(self, *, snapshot: Snapshot, last_id: int | None, complete: bool) -> Snapshot:
        within = super().advance(snapshot=snapshot, last_id=last_id, complete=complete)
        self.next = self.changed(snapshot, last_id)
        return within

    def changed(self, snapshot: Snapshot, last_id: int | None) -> Reading:
        raise NotImplementedError


class ReadsByIds(_Windows):
    highest = 0

    def changed(self, snapshot: Snapshot, last_id: int | None) -> Reading:
        self.highest = max(self.highest, last_id or 0)
        return Reading(above=self.highest)


class ForgetsInProgress(_Windows):
    def changed(self, snapshot: Snapshot, last_id: int | None) -> Reading:
        after = self.next.after and replace(self.next.after, in_progress=frozenset())
        return replace(self.next, after=after)


class PagesFreely(_Windows):
    """Reads a window's next pages as of now, and takes the last one's snapshot for the window's."""

    def advance(self, *, snapshot: Snapshot, last_id: int | None, complete: bool) -> Snapshot:
        more = not complete and last_id is not None
        self.next = Reading(after=self.next.after, above=last_id or 0) if more else Reading(after=snapshot)
        return snapshot


# Flush tracking


class FlushesEarly(FlushTracking):
    """Takes what is sent for flushed."""

    def send(self, records: int) -> None:
        super().send(records)
        self.flush(records)


class TakesPageForWindow(ExactlyOnceTerm):
    """Takes every page for all of its window."""

    async def _read_page(self, *, max_records: int, max_bytes: int) -> bool:
        found = await super()._read_page(max_records=max_records, max_bytes=max_bytes)
        if (within := self._windows.next.within) is not None:
            self._tracking.end_window(within)
        return found


class EndsWindowsLate(ExactlyOnceTerm):
    """Takes the snapshot of a window's last page for the window's."""

    async def _read_page(self, *, max_records: int, max_bytes: int) -> bool:
        before = self._windows.next.within
        found = await super()._read_page(max_records=max_records, max_bytes=max_bytes)
        if before is not None and self._windows.next.within is None:
            page = await self._table.read(Reading(), max_records=1, max_bytes=1, transaction_ids=False)
            self._tracking.end_window(page.snapshot)
        return found


class CutsAnywhere(Closure):
    def cut(self, rows: Sequence[OutboxRow], *, complete: bool) -> tuple[int, bool]:
        return len(rows), True


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


def _table(name: str, table: Callable[..., SimulatedTable]) -> Bug:
    return Bug(name, Design(table=table))


def _log(name: str, log: Callable[..., SimulatedTransactionalLog]) -> Bug:
    return Bug(name, Design(transactional_log=log))


def _term(name: str, term: type[ExactlyOnceTerm], design: Design = SOUND) -> Bug:
    return Bug(name, design, modes, "ExactlyOnceTerm", term)


def _recovery(name: str, recover: Callable[..., Any]) -> Bug:
    return Bug(name, SOUND, exactly_once, "recover", recover)


def _windows(name: str, value: type[windows.Windows]) -> Bug:
    return Bug(name, SOUND, exactly_once, "Windows", value)


ATOMIC = Design(atomic=True)
BUGS: Collection[Bug] = (
    _table("the fence row is ignored", Unfenced),
    _log("older producers are not fenced", FencesNobody),
    _log("the ledger is read before older producers are fenced", FencesLate),
    _recovery("what the ledger says is committed is not purged", _forgets_ledger),
    _log("the ledger is written after the transaction", LedgerApart),
    _log("the ledger is written outside any transaction", LedgerFirst),
    _table("purges are by range", PurgesByRange),
    _term("purges come before the commit", PurgesBeforeCommit),
    _table("what is visible is taken for durable", NeverFlushes),
    _term("the ledger tells of a witness that is not durable", WitnessesEarly),
    _term("entries are deleted before their batches are purged", BuriesEarly),
    _windows("records are read by id only", ReadsByIds),
    _windows("windows forget transactions in progress", ForgetsInProgress),
    _windows("a window's next pages are not of its snapshot", PagesFreely),
    _log("an uncertain commit is taken for failed", TakesCommitForFailed),
    _log("an uncertain commit is taken for done", TakesCommitForDone),
    _table("an uncertain purge is taken for done", ForgetsPurges),
    _term("reading begins before recovery", ReadsBeforeRecovery),
    _term("windows outlive their term", Remembers),
    _recovery("batch numbers are used again", _reuses_numbers),
    Bug("what is sent counts as published", SOUND, exactly_once, "FlushTracking", FlushesEarly),
    _term("a page counts as its window", TakesPageForWindow),
    _term("a window's snapshot is its last page's", EndsWindowsLate),
    Bug("what earlier views have left is purged and not counted", SOUND, Entry, "topics", lambda entry: Counter()),
    Bug("a fenced member takes over again", Design(harvester=Duels)),
    Bug("transactions are cut anywhere", ATOMIC, exactly_once, "Closure", CutsAnywhere),
    _term("a stop commits a transaction in parts", CommitsWhenStopped, ATOMIC),
)
