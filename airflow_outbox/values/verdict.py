"""The verdict: how an outbox is doing, and the facts that it is made of. `judging` makes the one of the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, Self, TypeVar

from airflow_outbox.values.membership import Part
from airflow_outbox.values.positions import PositionsReport

_Any = TypeVar("_Any")


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


BY_GRAVITY: Final = (
    State.HALTED,
    State.STALLED,
    State.NO_LEADER,
    State.UNKNOWN,
    State.HELD,
    State.LAGGING,
    State.PAUSED,
    State.HEALTHY,
)
"""The states, the gravest first."""


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
    CLUSTER = "cluster"
    TAKE_OVER = "take_over"
    QUOTA = "quota"
    EXTENTS = "extents"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A member says that it can't do something: since when, and when it said so last.

    `shard` is the one that it is about (None: all).
    """

    member: str
    kind: TroubleKind
    error: str
    since: datetime
    told_at: datetime
    shard: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """One of an outbox's several clusters: its part, and how many batches fewer than any other it is known to have, of
    all shards together; since when it has its part, and why, if somebody said.

    `owed_since` is when the oldest of the batches was published that Postgres keeps for it (None: none is kept, or it
    counts). `is_wanted` says whether somebody has asked to attach it.
    """

    name: str
    part: Part
    behind: int = 0
    since: datetime | None = None
    reason: str | None = None
    owed_since: datetime | None = None
    is_wanted: bool = False


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

    @classmethod
    def of(cls, parts: Iterable[Self | None]) -> Self | None:
        """Return the backlog that has these parts; None if one of them is not known."""
        known = list(parts)
        if any(part is None for part in known):
            return None
        return cls(
            sum(part.records for part in known if part),
            all(part.is_exact for part in known if part),
            max(_known(part.oldest_age for part in known if part), default=None),
        )


UNDELETED: Final = "undeleted"
"""In place of a cause of parking: records that are published, and that Postgres would not delete."""


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
    - `parked`: refused records by cause; and, as `UNDELETED`, those that Postgres would not delete
    - `in_flight`, `rate`: the leader's records in flight, and how many a second it published lately
    - `clusters`: the outbox's, the primary first (empty: there is one)
    - `layout`: the number of the layout
    - `thresholds`: the bounds that the leaders judge by, the default for each that they have not told
    - `published`: how many records the leaders have reported as published so far
    - `positions`: what each replicator of consumer groups' positions saw last

    Of several `shards`, each has facts of its own, with its number in `shard`. There is a leader of the whole only if
    each has one; it is the first one's, as silent as the most silent. The whole's error is the oldest.
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
    in_flight: int = 0
    rate: float = 0.0
    clusters: tuple[ClusterFacts, ...] = ()
    layout: int = 1
    thresholds: Thresholds = Thresholds()
    published: int = 0
    positions: tuple[PositionsReport, ...] = ()
    shard: int | None = None
    shards: tuple[Facts, ...] = ()

    @classmethod
    def of(cls, shards: Sequence[Facts], *, backlog: Backlog | None = None) -> Facts:
        """Return the facts of an outbox with these shards, each with its number.

        `backlog` is the whole's, where the shards have none of their own.
        """
        first = shards[0]
        backlog = backlog or Backlog.of([each.backlog for each in shards])
        if len(shards) == 1:
            return replace(first, shard=None, backlog=backlog)
        errors = [each for each in shards if each.last_error is not None and each.last_error_at is not None]
        oldest = min(errors, key=lambda each: each.last_error_at or each.now, default=None)
        return replace(
            first,
            shard=None,
            shards=tuple(shards),
            member=first.member if all(each.member is not None for each in shards) else None,
            heard_at=_least([each.heard_at for each in shards]),
            took_over_at=max(_known(each.took_over_at for each in shards), default=None),
            published_at=max(_known(each.published_at for each in shards), default=None),
            last_error=oldest.last_error if oldest else None,
            last_error_at=oldest.last_error_at if oldest else None,
            backlog=backlog,
            parked=_all_parked(shards),
            in_flight=sum(each.in_flight for each in shards),
            rate=sum(each.rate for each in shards),
            published=sum(each.published for each in shards),
        )

    @property
    def each(self) -> tuple[Facts, ...]:
        """The shards' facts; of a single shard, these."""
        return self.shards or (self,)

    def seconds_since(self, time: datetime) -> float:
        return (self.now - time).total_seconds()

    def leads(self, thresholds: Thresholds) -> bool:
        """Whether somebody leads: the leader was heard from lately, and not in the future (a clock was set back)."""
        if self.shards:
            return all(each.leads(thresholds) for each in self.shards)
        if self.member is None or self.heard_at is None:
            return False
        return 0 <= self.seconds_since(self.heard_at) <= thresholds.silence

    def rate_now(self, thresholds: Thresholds) -> float:
        """How many records a second are published now; a shard that nobody leads publishes none."""
        return sum(each.rate for each in self.each if each.leads(thresholds))

    def has_published_since(self, time: datetime) -> bool:
        return self.published_at is not None and self.published_at > time


def in_words(seconds: float) -> str:
    """Return a duration as people say it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def named(shards: Sequence[int]) -> str:
    """Return these shards as people say it, for example `shards 1 and 3`."""
    *others, last = map(str, shards)
    return f"shards {', '.join(others)} and {last}" if others else f"shard {last}"


def _known(values: Iterable[_Any | None]) -> list[_Any]:
    return [value for value in values if value is not None]


def _least(times: Sequence[datetime | None]) -> datetime | None:
    """The earliest; None if one is not known."""
    known = _known(times)
    return min(known) if len(known) == len(times) else None


def _all_parked(shards: Iterable[Facts]) -> dict[str, ParkedRefusals]:
    found: dict[str, ParkedRefusals] = {}
    for cause, part in (item for each in shards for item in each.parked.items()):
        before = found.get(cause, part)
        records = part.records + (before.records if cause in found else 0)
        found[cause] = replace(min(before, part, key=lambda refusals: refusals.since), records=records)
    return found
