"""Bugs, planted on purpose: each breaks one rule of the design in the engine, or in what a member asks of a server, and
never in the world. The histories have to find every one of them, and for what it breaks; a simulator that does not
would prove nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from simulation import (
    planted,
    planted_fencing,
    planted_histories,
    planted_ports,
    planted_shards,
    planted_tracking,
    planted_waiting,
    waiting,
    world,
)
from simulation.bug import Bug
from simulation.cluster_bugs import CLUSTER_BUGS
from simulation.database_state import FenceRow
from simulation.postgres import Database
from simulation.sharded import SHARDS
from simulation.statements import Server
from simulation.verdicts import Verdict
from simulation.world import Design

from airflow_outbox.harvest import exactly_once, leadership, modes, reading
from airflow_outbox.harvest import recovery as recovery_term
from airflow_outbox.harvest.kafka.fencing import StuckIds
from airflow_outbox.harvest.protocol import adoption, atomic_batches, recovery
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.ledger import Entry
from airflow_outbox.harvest.protocol.parking import Caution, ParkedLanes
from airflow_outbox.tickets import listener
from airflow_outbox.tickets.watermarks import Watermarks

ATOMIC = Design(atomic=True)
OTHER = "other_histories"
LATE = "late_requests"
SICK = "sick_partitions"
KINDS_OF_SHARDS = {kind: Design(shards=shards) for kind, shards in SHARDS.items()}


def _table(name: str, table: Any, *found_by: Verdict, kind: str = "exactly_once") -> Bug:
    return Bug(name, found_by, kind, Design(table=table))


def _log(name: str, log: Any, *found_by: Verdict, kind: str = "exactly_once") -> Bug:
    return Bug(name, found_by, kind, Design(transactional_log=log))


def _term(name: str, term: Any, *found_by: Verdict, kind: str = "exactly_once") -> Bug:
    return Bug(name, found_by, kind, exchanged=(modes, "ExactlyOnceTerm", term))


def _recovery(name: str, recover: Any, *found_by: Verdict, kind: str = "exactly_once") -> Bug:
    return Bug(name, found_by, kind, exchanged=(recovery_term, "recover", recover))


def _windows(name: str, windows: Any, *found_by: Verdict) -> Bug:
    return Bug(name, found_by, exchanged=(reading, "Windows", windows))


def _reading(name: str, reading: Any, *found_by: Verdict) -> Bug:
    return Bug(name, found_by, exchanged=(exactly_once, "Reading", reading))


def _parking(name: str, place: object, attribute: str, value: Any, *found_by: Verdict) -> Bug:
    return Bug(name, found_by, "poisoned", exchanged=(place, attribute, value))


def _atomic(name: str, place: object, attribute: str, value: Any, *found_by: Verdict) -> Bug:
    return Bug(name, found_by, "atomic", ATOMIC, (place, attribute, value))


def _waiting(name: str, attribute: str, value: Any, *found_by: Verdict, kind: str = "exactly_once") -> Bug:
    return Bug(name, found_by, kind, exchanged=(listener, attribute, value))


def _copied(name: str, place: object, attribute: str, value: Any, *found_by: Verdict) -> Bug:
    return Bug(name, found_by, "copied", exchanged=(place, attribute, value))


def _adopted(name: str, place: object, attribute: str, value: Any) -> Bug:
    return Bug(name, (Verdict.DOUBLED,), "adopted_exchanges", exchanged=(place, attribute, value))


def _sharded(name: str, place: object, attribute: str, value: Any, *found_by: Verdict, kind: str = "sharded") -> Bug:
    return Bug(name, found_by, kind, KINDS_OF_SHARDS[kind], (place, attribute, value))


def _fencing(name: str, place: object, attribute: str, value: Any, *found_by: Verdict) -> Bug:
    return Bug(name, found_by, SICK, exchanged=(place, attribute, value))


_V = Verdict
BUGS: Collection[Bug] = (
    # Fences and producers
    _table("the fence row is ignored", planted_ports.Unfenced, _V.FALSE_WATERMARK),
    Bug("a fenced member takes over again", (_V.DUEL,), design=Design(leadership=planted.Duels)),
    _log("older producers are not fenced", planted_ports.FencesNobody, _V.DOUBLED, kind=LATE),
    _log("of several producers only the first is fenced", planted_ports.FencesOne, _V.DOUBLED, kind=LATE),
    _log("producers of other settings are not fenced", planted_ports.ForgetsOthers, _V.DOUBLED, kind=LATE),
    _log("a request that may come twice leaves the epoch as it is", planted_ports.KeepsItsEpoch, _V.DOUBLED, kind=LATE),
    _log("what is decided counts as readable", planted_ports.TakesDecidedForReadable, _V.FALSE_WATERMARK),
    _log("an uncertain commit is taken for failed", planted_ports.TakesCommitForFailed, _V.DOUBLED, kind=LATE),
    _log("an uncertain commit is taken for done", planted_ports.TakesCommitForDone, _V.PURGED_UNPUBLISHED, kind=LATE),
    # The ledger and recovery
    _log("the ledger is read before older producers are fenced", planted_ports.FencesLate, _V.DOUBLED, kind=LATE),
    _recovery("what the ledger says is committed is not purged", planted.forgets_ledger, _V.DOUBLED),
    _log("the ledger is written after the transaction", planted_ports.LedgerApart, _V.DOUBLED),
    _log("the ledger is written outside any transaction", planted_ports.LedgerFirst, _V.LOST),
    _term("the ledger tells of a witness that is not durable", planted.WitnessesEarly, _V.FALSE_ALARM),
    _term("entries are deleted before their batches are purged", planted.BuriesEarly, _V.FALSE_ALARM),
    _term("a batch is committed before the one before it", planted.CommitsAtOnce, _V.FALSE_ALARM),
    _recovery("batch numbers are used again", planted.reuses_numbers, _V.FALSE_ALARM),
    _table("reading begins before recovery", planted_ports.ReadsBeforeRecovery, _V.DOUBLED),
    # Ids that can't be fenced now
    _fencing(
        "others' ids that can't be fenced are left alone",
        recovery_term,
        "require_given_up",
        planted_fencing.leaves_others_alone,
        _V.DOUBLED,
    ),
    _fencing(
        "ids count as given up that are in use", recovery_term, "recorded_ids", planted_fencing.gives_all_up, _V.DOUBLED
    ),
    _fencing(
        "an id is left alone whose commit is uncertain",
        StuckIds,
        "leave_alone",
        planted_fencing.leaves_all_alone,
        _V.DOUBLED,
    ),
    _fencing(
        "the watermark moves while an id is not fenced",
        exactly_once,
        "Settling",
        planted_fencing.AnnouncesAll,
        _V.FALSE_WATERMARK,
    ),
    Bug(
        "retried records are parked no more before they can be read",
        (_V.FALSE_PUBLISHED,),
        "sick_partitions_atomic",
        ATOMIC,
        (modes, "RecoveryTerm", planted_fencing.UnparksUnread),
    ),
    _term("nothing is counted while an id is not fenced", planted_fencing.CountsLater, _V.FALSE_COUNTS, kind=SICK),
    _fencing(
        "an id that was left alone is never fenced",
        exactly_once,
        "fence_rest",
        planted_fencing.never_fence_rest,
        _V.MISSING_PUBLISHED,
    ),
    # Purges
    _table("purges are by range", planted_ports.PurgesByRange, _V.LOST),
    _term("purges come before the commit", planted.PurgesBeforeCommit, _V.LOST, _V.PURGED_UNPUBLISHED),
    _table("an uncertain purge is taken for done", planted_ports.ForgetsPurges, _V.DOUBLED),
    _table("what is visible is taken for durable", planted_ports.NeverFlushes, _V.FOREIGN),
    Bug(
        "the harvester's own statements are not on disk when they return",
        (_V.FALSE_ALARM,),
        exchanged=(Database, "statement", planted.asynchronously),
    ),
    # Windows
    _windows("records are read by id only", planted.ReadsByIds, _V.STUCK, _V.OUT_OF_ORDER),
    _windows("windows forget transactions in progress", planted.ForgetsInProgress, _V.STUCK, _V.OUT_OF_ORDER),
    _windows("a window's next pages are not of its snapshot", planted.PagesFreely, _V.FALSE_WATERMARK),
    _table("a window's upper bound is dropped", planted_ports.ReadsBeyond, _V.DOUBLED, _V.FALSE_WATERMARK),
    Bug(
        "loaded rows keep their transactions' ids",
        (_V.STUCK, _V.LOST),
        exchanged=(Database, "guarded", staticmethod(planted.as_loaded)),
    ),
    _table("a term begins after all that is visible", planted_ports.BeginsLate, _V.STUCK, _V.LOST),
    _reading("windows outlive their term", planted.Remembers, _V.STUCK, _V.OUT_OF_ORDER),
    # Parking
    _parking("later records do not wait behind a parked one", ParkedLanes, "holds", planted.never, _V.OUT_OF_ORDER),
    _parking(
        "the ledger does not tell of parked records that are published", Batch, "entry", planted.untold, _V.DOUBLED
    ),
    _parking("a lane flows again while records wait in it", ParkedLanes, "gone", planted.forget_lanes, _V.OUT_OF_ORDER),
    _parking(
        "Postgres is believed about lanes that are not parked yet",
        ParkedLanes,
        "begin_asking",
        planted.forget_diverted,
        _V.OUT_OF_ORDER,
    ),
    _parking("what Kafka refuses together is never divided", Caution, "portions", planted.together, _V.STUCK),
    _parking(
        "what is on its way is discarded",
        exactly_once,
        "ParkedRetry",
        planted.DiscardsOnItsWay,
        _V.DISCARDED_PUBLISHED,
    ),
    # Whole source transactions
    _atomic("transactions are cut anywhere", exactly_once, "Closure", planted.CutsAnywhere, _V.TORN),
    _atomic("only what is not whole is held back", atomic_batches, "behind", planted.no_others, _V.OUT_OF_ORDER),
    _atomic("what is parked in part is published", Server, "parked_lengths", planted.as_parked, _V.TORN),
    _atomic("a stop commits a transaction in parts", exactly_once, "ReadBuffer", planted.CommitsWhenStopped, _V.TORN),
    # The watermark
    Bug(
        "what is sent counts as published",
        (_V.FALSE_WATERMARK,),
        exchanged=(exactly_once, "FlushTracking", planted_tracking.FlushesEarly),
    ),
    _reading("a page counts as its window", planted_tracking.TakesPageForWindow, _V.FALSE_WATERMARK),
    _reading("a window's snapshot is its last page's", planted_tracking.EndsWindowsLate, _V.FALSE_WATERMARK),
    Bug(
        "what earlier views have left is purged and not counted",
        (_V.FALSE_COUNTS,),
        exchanged=(Entry, "topics", planted_tracking.no_topics),
    ),
    # Tickets
    _waiting(
        "'parked' is asked before the watermark",
        "Listener",
        planted_waiting.AsksParkedFirst,
        _V.FALSE_PUBLISHED,
        kind="poisoned",
    ),
    _waiting(
        "what was heard on a lost connection is believed",
        "Awaited",
        planted_waiting.BelievesOldNews,
        _V.FALSE_PUBLISHED,
        kind=OTHER,
    ),
    _waiting(
        "a ticket is refused by an old look",
        "Awaited",
        planted_waiting.RefusesByOldLooks,
        _V.MISSING_PUBLISHED,
        kind="adopted",
    ),
    _waiting(
        "a ticket of before an adoption is refused by an old look",
        "Awaited",
        planted_waiting.RefusesEarlierByOldLooks,
        _V.MISSING_PUBLISHED,
        kind="adopted_midway",
    ),
    _waiting("a listener relies on announcements", "Awaited", planted_waiting.NeverLooks, _V.MISSING_PUBLISHED),
    Bug(
        "a watermark is shown in any history",
        (_V.FALSE_PUBLISHED,),
        OTHER,
        exchanged=(waiting, "SimulatedSession", planted_waiting.ShowsAnyHistory),
    ),
    # Other histories
    _table("purges are by id only", planted_ports.PurgesUnseen, _V.PURGED_UNPUBLISHED, kind="adopted_exchanges"),
    _recovery(
        "other histories are not looked for", planted.believes_all, _V.PURGED_UNPUBLISHED, _V.DOUBLED, kind=OTHER
    ),
    _recovery("incarnations are not compared", planted.ignores_incarnations, _V.STUCK, kind="adopted"),
    _recovery(
        "what a cut has left of a batch is purged",
        planted_histories.completes_behind_the_head,
        _V.FALSE_COUNTS,
        kind="adopted",
    ),
    Bug(
        "an adoption purges what an earlier incarnation has published",
        (_V.PURGED_UNPUBLISHED, _V.LOST),
        "adopted_midway",
        exchanged=(adoption, "unpurged", planted_histories.adopts_all_incarnations),
    ),
    _adopted("records of another table are published", reading, "require_page", planted_histories.takes_any),
    _adopted("what is published beyond doubt is not purged", adoption, "of_present_records", planted_histories.doubts),
    Bug(
        "the ledger is believed whatever became of the database",
        (_V.PURGED_UNPUBLISHED, _V.LOST),
        "adopted_midway",
        exchanged=(adoption, "of_present_records", planted_histories.never_doubts),
    ),
    # Shards
    _sharded("a leader reads the slots of others", reading, "Windows", planted_shards.reads_all, _V.DOUBLED),
    _sharded(
        "a window ends with the first of its slots",
        reading,
        "Windows",
        planted_shards.EndsWithItsPage,
        _V.FALSE_WATERMARK,
        _V.STUCK,
    ),
    _sharded(
        "slots go on above the same id", reading, "Windows", planted_shards.GoesOnTogether, _V.FALSE_WATERMARK, _V.STUCK
    ),
    _sharded("one shard's watermark counts for all", Watermarks, "see", planted_shards.sees_in_any, _V.FALSE_PUBLISHED),
    _sharded(
        "parked records are every shard's",
        FenceRow,
        "has",
        planted_shards.any_has,
        _V.DOUBLED,
        kind="resharded_poisoned",
    ),
    _sharded(
        "a new layout goes on from the first shard's watermark",
        Server,
        "met",
        staticmethod(planted_shards.first_of),
        _V.FALSE_WATERMARK,
        _V.FALSE_PUBLISHED,
        kind="resharded",
    ),
    _sharded(
        "resharding completes only the first shard",
        world,
        "Resharding",
        planted_shards.CompletesOnlyTheFirst,
        _V.DOUBLED,
        _V.OUT_OF_ORDER,
        _V.LOST,
        _V.STUCK,
        kind="resharded",
    ),
    _sharded(
        "a shard that was handed over is never taken back", leadership, "Aside", planted_shards.NeverTakesBack, _V.STUCK
    ),
    Bug(
        "a leader that has handed over leads on",
        (_V.DUEL,),
        "sharded",
        replace(KINDS_OF_SHARDS["sharded"], leadership=planted_shards.LeadsOn),
    ),
    *CLUSTER_BUGS,
    # Copies
    _recovery(
        "it is not compared which view has published",
        planted_histories.ignores_views,
        _V.PURGED_UNPUBLISHED,
        _V.LOST,
        kind="copied",
    ),
    _copied(
        "databases' oids are not compared",
        recovery,
        "differences_of_databases",
        planted_histories.ignores_database_oids,
        _V.DISTURBED,
    ),
    _copied(
        "producers are fenced before the ledger is looked at",
        recovery_term,
        "require_no_rival",
        planted_histories.pass_by,
        _V.DISTURBED,
    ),
    _copied(
        "producers are fenced before Postgres is looked at",
        modes,
        "require_history",
        planted_histories.looks_only_later,
        _V.DISTURBED,
    ),
)
