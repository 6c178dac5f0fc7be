"""Bugs, planted on purpose: each breaks one rule of the design in the engine, or in what a member asks of a server, and
never in the world. The histories have to find every one of them; a simulator that does not would prove nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from simulation import waiting
from simulation.log import SimulatedTransactionalLog
from simulation.planted_ports import (
    FencesLate,
    FencesNobody,
    ForgetsPurges,
    LedgerApart,
    LedgerFirst,
    NeverFlushes,
    PurgesByRange,
    PurgesUnseen,
    TakesCommitForDone,
    TakesCommitForFailed,
    Unfenced,
)
from simulation.planted_tracking import EndsWindowsLate, FlushesEarly, TakesPageForWindow, no_topics
from simulation.planted_waiting import AsksParkedFirst, BelievesOldNews, NeverLooks, RefusesByOldLooks, ShowsAnyHistory
from simulation.table import SimulatedTable
from simulation.verdicts import Verdict
from simulation.world import SOUND, Design

from airflow_outbox import listening
from airflow_outbox.errors import FencedError, PostgresError
from airflow_outbox.fence import Fence
from airflow_outbox.harvest import exactly_once, modes
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.harvester import Harvester
from airflow_outbox.harvest.protocol import windows
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.closure import Closure
from airflow_outbox.harvest.protocol.ledger import Entry, Ledger
from airflow_outbox.harvest.protocol.parking import Diversion, ParkedLanes, Refusal
from airflow_outbox.pages import OutboxRow, Reading
from airflow_outbox.records import Snapshot


@dataclass(frozen=True, slots=True)
class Bug:
    """A broken rule, and the kind of histories that find it: by members' design, or by exchanging an attribute."""

    name: str
    kind: str = "exactly_once"
    design: Design = SOUND
    place: object = None
    attribute: str = ""
    value: Any = None
    found_by: Collection[Verdict] = ()
    """The verdicts of which one has to find it; any other complaint does not count."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug while this lasts."""
        if self.place is None:
            yield
        else:
            with patch.object(self.place, self.attribute, self.value):
                yield


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


def _never(lanes: ParkedLanes, lane: Any) -> bool:
    return False


def _untold(batch: Batch, number: int, *, view: UUID, incarnation: int) -> Any:
    return _entry(replace(batch, unparked=[]), number, view=view, incarnation=incarnation)


def _as_before(_: ParkedLanes, rows: Sequence[Any], refusals: Mapping[int, Refusal]) -> Diversion[Any]:
    refused = {row[0]: refusals[row[0]] for row in rows if row[0] in refusals}
    return Diversion((), refused, [row[0] for row in rows if row[0] not in refused])


def _forget_lanes(lanes: ParkedLanes, gone: Any) -> None:
    for lane in gone:
        lanes._waiting.pop(lane, None)


_entry = Batch.entry


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

    async def _piece_for(self, batch: Any) -> Any:
        piece = await super()._piece_for(batch)
        return piece and replace(piece, ends=True)


def _forgets_ledger(fence: Fence, ledger: Ledger) -> Any:
    return replace(_recover(fence, ledger), unpurged=())


def _ignores_beats(fence: Fence, ledger: Ledger) -> Any:
    return _recover(replace(fence, beats=2**63), ledger)


def _ignores_incarnations(fence: Fence, ledger: Ledger) -> Any:
    head = ledger.head and replace(ledger.head, incarnation=fence.incarnation)
    entries = tuple(replace(entry, incarnation=fence.incarnation) for entry in ledger.entries)
    return _recover(fence, replace(ledger, head=head, entries=entries))


def _reuses_numbers(fence: Fence, ledger: Ledger) -> Any:
    found = _recover(fence, ledger)
    return replace(found, witness=replace(found.witness, batch=fence.witness.batch))


def _believes_all(fence: Fence, ledger: Ledger) -> Any:
    with patch("airflow_outbox.harvest.protocol.recovery.differences", lambda *_: ()):
        return _recover(fence, ledger)


_recover = exactly_once.recover


# Windows


class _Windows(windows.Windows, ABC):
    def advance(self, *, snapshot: Snapshot, last_id: int | None, complete: bool) -> Snapshot:
        within = super().advance(snapshot=snapshot, last_id=last_id, complete=complete)
        self.next = self.changed(snapshot, last_id)
        return within

    @abstractmethod
    def changed(self, snapshot: Snapshot, last_id: int | None) -> Reading:
        """What to read next, by a rule that is wrong."""


class ReadsByIds(_Windows):
    highest = 0

    def changed(self, snapshot: Snapshot, last_id: int | None) -> Reading:
        self.highest = max(self.highest, last_id or 0)
        return Reading(above=self.highest)


class ForgetsInProgress(_Windows):
    def changed(self, snapshot: Snapshot, last_id: int | None) -> Reading:
        after = self.next.after and replace(self.next.after, in_progress=frozenset())
        return replace(self.next, after=after)


class PagesFreely(windows.Windows):
    """Reads a window's next pages as of now, and takes the last one's snapshot for the window's."""

    def advance(self, *, snapshot: Snapshot, last_id: int | None, complete: bool) -> Snapshot:
        more = not complete and last_id is not None
        self.next = Reading(after=self.next.after, above=last_id or 0) if more else Reading(after=snapshot)
        return snapshot


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


Verdicts = Collection[Verdict]


def _table(
    name: str, table: Callable[..., SimulatedTable], kind: str = "exactly_once", *, found_by: Verdicts = ()
) -> Bug:
    return Bug(name, kind, Design(table=table), found_by=found_by)


def _log(name: str, log: Callable[..., SimulatedTransactionalLog], *, found_by: Verdicts = ()) -> Bug:
    return Bug(name, design=Design(transactional_log=log), found_by=found_by)


def _term(name: str, term: type[ExactlyOnceTerm], design: Design = SOUND, *, found_by: Verdicts = ()) -> Bug:
    return Bug(name, "exactly_once", design, modes, "ExactlyOnceTerm", term, found_by)


def _recovery(name: str, recover: Callable[..., Any], kind: str = "exactly_once", *, found_by: Verdicts = ()) -> Bug:
    return Bug(name, kind, SOUND, exactly_once, "recover", recover, found_by)


def _windows(name: str, value: type[windows.Windows], *, found_by: Verdicts = ()) -> Bug:
    return Bug(name, "exactly_once", SOUND, exactly_once, "Windows", value, found_by)


def _tracking(name: str, place: object, attribute: str, value: Any, *, found_by: Verdicts = ()) -> Bug:
    return Bug(name, "exactly_once", SOUND, place, attribute, value, found_by)


def _waiting(
    name: str, attribute: str, value: type[Any], kind: str = "exactly_once", *, found_by: Verdicts = ()
) -> Bug:
    return Bug(name, kind, SOUND, listening, attribute, value, found_by)


OTHER = "other_histories"
ATOMIC = Design(atomic=True)
AT_LEAST_ONCE = Design(delivery="at_least_once")
BUGS: Collection[Bug] = (
    _table("the fence row is ignored", Unfenced, found_by=(Verdict.FALSE_WATERMARK,)),
    _log("older producers are not fenced", FencesNobody, found_by=(Verdict.DOUBLED,)),
    _log("the ledger is read before older producers are fenced", FencesLate, found_by=(Verdict.DOUBLED,)),
    _recovery("what the ledger says is committed is not purged", _forgets_ledger, found_by=(Verdict.DOUBLED,)),
    _log("the ledger is written after the transaction", LedgerApart, found_by=(Verdict.DOUBLED,)),
    _log("the ledger is written outside any transaction", LedgerFirst, found_by=(Verdict.LOST,)),
    _table("purges are by range", PurgesByRange, found_by=(Verdict.LOST,)),
    _term("purges come before the commit", PurgesBeforeCommit, found_by=(Verdict.LOST,)),
    _table("what is visible is taken for durable", NeverFlushes, found_by=(Verdict.FOREIGN,)),
    _term("the ledger tells of a witness that is not durable", WitnessesEarly, found_by=(Verdict.FALSE_ALARM,)),
    _term("entries are deleted before their batches are purged", BuriesEarly, found_by=(Verdict.FALSE_ALARM,)),
    _windows("records are read by id only", ReadsByIds, found_by=(Verdict.STUCK, Verdict.OUT_OF_ORDER)),
    _windows(
        "windows forget transactions in progress", ForgetsInProgress, found_by=(Verdict.STUCK, Verdict.OUT_OF_ORDER)
    ),
    _windows("a window's next pages are not of its snapshot", PagesFreely, found_by=(Verdict.FALSE_WATERMARK,)),
    _log("an uncertain commit is taken for failed", TakesCommitForFailed, found_by=(Verdict.DOUBLED,)),
    _log("an uncertain commit is taken for done", TakesCommitForDone, found_by=(Verdict.PURGED_UNPUBLISHED,)),
    _table("an uncertain purge is taken for done", ForgetsPurges, found_by=(Verdict.DOUBLED,)),
    _term("reading begins before recovery", ReadsBeforeRecovery, found_by=(Verdict.DOUBLED,)),
    _term("windows outlive their term", Remembers, found_by=(Verdict.STUCK, Verdict.OUT_OF_ORDER)),
    _recovery("batch numbers are used again", _reuses_numbers, found_by=(Verdict.FALSE_ALARM,)),
    Bug(
        "a record is moved before the ledger says so",
        "poisoned",
        SOUND,
        modes,
        "ExactlyOnceTerm",
        ParksFirst,
        found_by=(Verdict.OUT_OF_ORDER,),
    ),
    Bug(
        "later records do not wait behind a parked one",
        "poisoned",
        SOUND,
        ParkedLanes,
        "holds",
        _never,
        found_by=(Verdict.OUT_OF_ORDER,),
    ),
    Bug(
        "the ledger does not tell of parked records that are published",
        "poisoned",
        SOUND,
        Batch,
        "entry",
        _untold,
        found_by=(Verdict.DOUBLED,),
    ),
    Bug(
        "a lane flows again while records wait in it",
        "poisoned",
        SOUND,
        ParkedLanes,
        "gone",
        _forget_lanes,
        found_by=(Verdict.OUT_OF_ORDER,),
    ),
    Bug(
        "what waits for a record is not looked at again when that is gone",
        "poisoned_at_least_once",
        AT_LEAST_ONCE,
        ParkedLanes,
        "divert_again",
        _as_before,
        found_by=(Verdict.STUCK, Verdict.OUT_OF_ORDER),
    ),
    Bug("a fenced member takes over again", design=Design(harvester=Duels), found_by=(Verdict.DUEL,)),
    Bug(
        "transactions are cut anywhere",
        "atomic",
        ATOMIC,
        exactly_once,
        "Closure",
        CutsAnywhere,
        found_by=(Verdict.TORN,),
    ),
    _term("a stop commits a transaction in parts", CommitsWhenStopped, ATOMIC, found_by=(Verdict.TORN,)),
    _tracking(
        "what is sent counts as published",
        exactly_once,
        "FlushTracking",
        FlushesEarly,
        found_by=(Verdict.FALSE_WATERMARK,),
    ),
    _term("a page counts as its window", TakesPageForWindow, found_by=(Verdict.FALSE_WATERMARK,)),
    _term("a window's snapshot is its last page's", EndsWindowsLate, found_by=(Verdict.FALSE_WATERMARK,)),
    _tracking(
        "what earlier views have left is purged and not counted",
        Entry,
        "topics",
        no_topics,
        found_by=(Verdict.FALSE_COUNTS,),
    ),
    _table("purges are by id only", PurgesUnseen, OTHER, found_by=(Verdict.PURGED_UNPUBLISHED,)),
    _recovery(
        "other histories are not looked for",
        _believes_all,
        OTHER,
        found_by=(Verdict.PURGED_UNPUBLISHED, Verdict.DOUBLED),
    ),
    _recovery(
        "leaders' beats are not compared",
        _ignores_beats,
        "restored",
        found_by=(Verdict.PURGED_UNPUBLISHED, Verdict.DOUBLED),
    ),
    _recovery("incarnations are not compared", _ignores_incarnations, "adopted", found_by=(Verdict.STUCK,)),
    _waiting(
        "'parked' is asked before the watermark",
        "Listener",
        AsksParkedFirst,
        "poisoned",
        found_by=(Verdict.FALSE_PUBLISHED,),
    ),
    _waiting(
        "what was heard on a lost connection is believed",
        "Awaited",
        BelievesOldNews,
        OTHER,
        found_by=(Verdict.FALSE_PUBLISHED,),
    ),
    _waiting(
        "a ticket is refused by an old look",
        "Awaited",
        RefusesByOldLooks,
        "adopted",
        found_by=(Verdict.MISSING_PUBLISHED,),
    ),
    _waiting("a listener relies on announcements", "Awaited", NeverLooks, found_by=(Verdict.MISSING_PUBLISHED,)),
    Bug(
        "a watermark is shown in any history",
        OTHER,
        SOUND,
        waiting,
        "SimulatedSession",
        ShowsAnyHistory,
        found_by=(Verdict.FALSE_PUBLISHED,),
    ),
)
