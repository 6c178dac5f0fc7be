"""The verdict: whether an outbox is all right; if not, why, since when, and what to do about it.

There is one judgement, and it is pure: facts in, a verdict out. Whoever shows how an outbox is doing shows this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from airflow_outbox.values.refusals import Cause

_FRESH = 15.0
"""Seconds for which a member's word counts: while its trouble lasts, it repeats it every five."""
_PASSING = (Cause.UNTRIED, Cause.SPREAD)
"""Causes of parking that usually pass within seconds, and need nobody."""


class State(StrEnum):
    """How an outbox is doing; exactly one of these."""

    HEALTHY = "healthy"
    LAGGING = "lagging"
    PAUSED = "paused"
    HELD = "held"
    STALLED = "stalled"
    HALTED = "halted"
    NO_LEADER = "no_leader"
    UNKNOWN = "unknown"

    @property
    def words(self) -> str:
        """The state as people see it, for example `NO LEADER`."""
        return self.value.upper().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state, its cause in words, since when it holds (None: not known), and what to do ('': nothing).

    `notes` are facts that don't change the state, such as another member's trouble.
    """

    state: State
    cause: str
    since: datetime | None = None
    remedy: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Bounds, in seconds.

    - `lagging_after`: the oldest unpublished record may wait for so long
    - `stalled_after`: nothing may be published for so long while a record waits as long
    - `silence`: a leader that was not heard from for longer leads no more
    """

    lagging_after: float = 60.0
    stalled_after: float = 60.0
    silence: float = 6.0


class TroubleKind(StrEnum):
    """Kinds of trouble that a member may have, the worst first."""

    KAFKA = "kafka"
    TAKE_OVER = "take_over"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A member says that it can't do something: since when, and when it said so last."""

    member: str
    kind: TroubleKind
    error: str
    since: datetime
    told_at: datetime


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many records wait, and for how many seconds the oldest has (None: none waits, or its time says nothing).

    Unless `is_exact`, more wait than `records`.
    """

    records: int
    is_exact: bool = True
    oldest_age: float | None = None

    def __str__(self) -> str:
        return f"{self.records}" if self.is_exact else f"more than {self.records}"


@dataclass(frozen=True, slots=True)
class ParkedRefusals:
    """The parked records that one cause has refused: how many at least, since when, and why the first was."""

    records: int
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that Postgres has about an outbox, at the time `now` of its clock.

    - `member`: the leader (None: nobody leads, or the last one ended gracefully), last heard from at `heard_at`
    - `published_at`: when a leader last reported that records were published
    - `doubt`: why nobody can tell what is published, such as a halt
    - `backlog`: None if it could not be counted in time
    - `parked`: refused records by cause
    - `held_by`: the cluster that all wait for
    """

    now: datetime
    is_standby: bool = False
    member: str | None = None
    heard_at: datetime | None = None
    took_over_at: datetime | None = None
    published_at: datetime | None = None
    paused: bool = False
    paused_at: datetime | None = None
    doubt: str | None = None
    last_error: str | None = None
    last_error_at: datetime | None = None
    backlog: Backlog | None = field(default_factory=lambda: Backlog(0))
    parked: Mapping[str, ParkedRefusals] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    held_by: str | None = None

    def seconds_since(self, time: datetime) -> float:
        return (self.now - time).total_seconds()

    def leads(self, thresholds: Thresholds) -> bool:
        """Whether somebody leads: the leader was heard from lately, and not in the future (a clock was set back)."""
        if self.member is None or self.heard_at is None:
            return False
        return 0 <= self.seconds_since(self.heard_at) <= thresholds.silence

    def has_published_since(self, time: datetime) -> bool:
        return self.published_at is not None and self.published_at > time


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that stands, and since when."""

    error: str
    since: datetime


def standing_fault(facts: Facts, thresholds: Thresholds) -> Fault | None:
    """Return the error that keeps records from being published now; the oldest, if there are several.

    It is the leader's, unless something was published since. While nobody leads it is any member's.
    """
    leads = facts.leads(thresholds)
    found = [
        Fault(f"{trouble.member}: {trouble.error}", trouble.since)
        for trouble in _fresh(facts)
        if trouble.kind is not TroubleKind.QUOTA and (not leads or trouble.member == facts.member)
    ]
    if leads and facts.last_error is not None and facts.last_error_at is not None:
        found.append(Fault(f"{facts.member}: {facts.last_error}", facts.last_error_at))
    if leads:
        found = [fault for fault in found if not facts.has_published_since(fault.since)]
    return min(found, key=lambda fault: fault.since, default=None)


def judge(facts: Facts, thresholds: Thresholds) -> Verdict:
    """Return the verdict. The gravest state that holds is the one."""
    if facts.is_standby:
        cause = "this server is a standby, which knows the outbox only up to a moment ago"
        return Verdict(State.UNKNOWN, cause, remedy="Ask the primary")
    if facts.doubt is not None:
        return _halted(facts, facts.doubt)
    if not facts.leads(thresholds):
        return _leaderless(facts, thresholds)
    verdict = _led(facts, thresholds)
    others = [trouble for trouble in _fresh(facts) if trouble.member != facts.member]
    notes = tuple(f"{trouble.member}: {trouble.error}" for trouble in others)
    return Verdict(verdict.state, verdict.cause, verdict.since, verdict.remedy, notes)


def unknown(error: str) -> Verdict:
    """Return the verdict when Postgres can't be reached, or the role may not look."""
    cause, remedy = divided(error)
    return Verdict(State.UNKNOWN, cause, remedy=remedy)


def divided(error: str) -> tuple[str, str]:
    """Divide an error's text into what happened and its last sentence, which says what to do."""
    cause, _, remedy = error.rpartition(". ")
    return (cause, remedy) if cause else (error, "")


def in_words(seconds: float) -> str:
    """Return a duration as people say it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def _fresh(facts: Facts) -> Iterable[Trouble]:
    return [trouble for trouble in facts.troubles if abs(facts.seconds_since(trouble.told_at)) <= _FRESH]


def _halted(facts: Facts, doubt: str) -> Verdict:
    is_the_error = facts.last_error is not None and doubt in facts.last_error
    return Verdict(
        State.HALTED,
        f"nothing is published, and nobody can tell what is: {doubt}",
        facts.last_error_at if is_the_error else None,
        "Find out what was restored, failed over, copied, deleted or recreated; then run `airflow-outbox adopt`, or, "
        "if this is a copy beside the original, `airflow-outbox adopt --as-new-outbox`",
    )


def _leaderless(facts: Facts, thresholds: Thresholds) -> Verdict:
    fault = standing_fault(facts, thresholds)
    if fault is not None:
        cause, remedy = divided(fault.error)
        return Verdict(State.STALLED, f"nobody can lead. {cause}", fault.since, remedy)
    cause, remedy = "nobody leads", "Start a harvester"
    if facts.heard_at is None:
        cause = "nobody has led yet"
    elif facts.member is not None and facts.heard_at > facts.now:
        cause += f": {facts.member} was last heard from before Postgres' clock was set back"
    elif facts.member is not None:
        cause += f": {facts.member} was last heard from {in_words(facts.seconds_since(facts.heard_at))} ago"
        remedy = "Look at that process, or start another harvester"
    if facts.paused:
        cause += ", and the outbox is paused"
    last = max(facts.troubles, key=lambda trouble: trouble.told_at, default=None)
    is_news = last is not None and (facts.heard_at is None or last.told_at > facts.heard_at)
    notes = (f"the last that {last.member} said: {last.error}",) if last is not None and is_news else ()
    return Verdict(State.NO_LEADER, cause, facts.heard_at, remedy, notes)


def _led(facts: Facts, thresholds: Thresholds) -> Verdict:
    if facts.paused:
        cause = "an operator has paused it: what is stashed waits"
        return Verdict(State.PAUSED, cause, facts.paused_at, "`airflow-outbox resume` ends the pause")
    if facts.held_by is not None:
        return Verdict(
            State.HELD, f"all waits for cluster {facts.held_by}", None, "Bring that cluster back, or detach it"
        )
    if (fault := standing_fault(facts, thresholds)) is not None:
        cause, remedy = divided(fault.error)
        return Verdict(State.STALLED, cause, fault.since, remedy)
    age = facts.backlog.oldest_age if facts.backlog is not None else None
    waits = f"{facts.backlog} records wait, the oldest for {in_words(age)}" if age is not None else ""
    since = facts.now - timedelta(seconds=age) if age is not None else None
    quota = next(
        (each for each in _fresh(facts) if each.kind is TroubleKind.QUOTA and each.member == facts.member), None
    )
    if quota is not None and waits:
        cause, remedy = divided(quota.error)
        return Verdict(State.LAGGING, f"{cause}; {waits}", quota.since, remedy)
    if age is not None and (idle_since := _idle_since(facts, age, thresholds)) is not None:
        idle = in_words(facts.seconds_since(idle_since))
        remedy = f"Look at the log of {facts.member}; `airflow-outbox handover` lets another member try"
        return Verdict(State.STALLED, f"{waits}, and none was published for {idle}", idle_since, remedy)
    if age is not None and age > thresholds.lagging_after:
        return Verdict(State.LAGGING, waits, since, "Wait if the rate is as it should be; otherwise look at Kafka")
    return _parked(facts, thresholds) or _healthy(facts)


def _idle_since(facts: Facts, age: float, thresholds: Thresholds) -> datetime | None:
    """Since when nothing has been published, if that is too long for the records that wait."""
    times = [time for time in (facts.took_over_at, facts.published_at) if time is not None]
    since = max([facts.now - timedelta(seconds=age), *times])
    return since if facts.seconds_since(since) > thresholds.stalled_after else None


def _parked(facts: Facts, thresholds: Thresholds) -> Verdict | None:
    found = {
        cause: refusals
        for cause, refusals in facts.parked.items()
        if cause not in _PASSING or facts.seconds_since(refusals.since) > thresholds.lagging_after
    }
    if not found:
        return None
    counts = ", ".join(f"{refusals.records} {cause}" for cause, refusals in found.items())
    first = min(found.values(), key=lambda refusals: refusals.since)
    remedy = "`airflow-outbox parked list` shows them: remove the cause and `parked retry`, or `parked discard`"
    return Verdict(State.LAGGING, f"records are parked ({counts}): {first.reason}", first.since, remedy)


def _healthy(facts: Facts) -> Verdict:
    if facts.backlog is None:
        return Verdict(State.HEALTHY, f"{facts.member} leads; the backlog could not be counted in time")
    if facts.backlog.records == 0:
        return Verdict(State.HEALTHY, f"{facts.member} leads, and nothing waits")
    return Verdict(State.HEALTHY, f"{facts.member} leads, and {facts.backlog} records are on their way")
