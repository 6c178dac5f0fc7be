"""Consumer groups' positions as a replicator sees them, for the verdict, the page and the metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self

_SILENT_AFTER: Final = 60.0
"""Seconds without a word after which a replicator counts as silent; it reports every ten, or after a longer look."""


class GroupState(StrEnum):
    """How the positions of a consumer group are, those first that need somebody."""

    FAILING = "failing"
    """They can't be read, translated or committed."""
    LEFT_ALONE = "left_alone"
    """Somebody else has committed on several clusters, so that nobody can tell where the group is."""
    LACKING = "lacking"
    """A cluster lacks partitions that the group reads."""
    WAITING = "waiting"
    """The group has members on a cluster where its position would be committed."""
    UNKNOWN = "unknown"
    """It has committed nothing in the outbox's topics."""
    FOLLOWING = "following"
    """They follow to the other clusters."""


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A consumer group as a replicator saw it.

    - `home`: the cluster where it reads, or read last (None: not known, or several)
    - `behind`: by other cluster, how many offsets it has read at home since its position was last committed there
    - `synced_at`: when a position of it was committed last (None: never)
    - `why`: how it is, in words
    """

    group: str
    state: GroupState
    home: str | None
    behind: Mapping[str, int]
    synced_at: datetime | None
    why: str

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Read a group as a replicator wrote it. A state of a later release counts as unknown."""
        state, at = values["state"], values["synced_at"]
        return cls(
            group=values["group"],
            state=GroupState(state) if state in set(GroupState) else GroupState.UNKNOWN,
            home=values["home"],
            behind=values["behind"],
            synced_at=None if at is None else datetime.fromisoformat(at),
            why=values["why"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsReport:
    """A replicator's last look, summed up.

    - `member`: the process that replicates, or has it done, by its name in `told_at`, when it said so
    - `beside_harvest`: whether a leader has it beside its harvest
    - `groups`: how many groups are in each state
    - `behind`: by cluster, the most offsets that any group's position is behind there
    - `commits`, `failures`: how often positions were committed, and how often something failed, since it started
    - `seconds`: how long the look took
    - `said`: what needs somebody, in sentences
    """

    member: str
    told_at: datetime
    beside_harvest: bool = True
    groups: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)
    commits: int = 0
    failures: int = 0
    seconds: float = 0.0
    said: Sequence[str] = ()

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Read a report as a replicator wrote it. Fields of a later release are left out."""
        known = {name: values[name] for name in cls.__slots__ if name in values}
        return cls(**{**known, "told_at": datetime.fromisoformat(values["told_at"])})

    def is_fresh(self, now: datetime) -> bool:
        """Whether it still counts at this time: slow looks come seldom."""
        return (now - self.told_at).total_seconds() <= max(_SILENT_AFTER, 4 * self.seconds)


def heard_last(
    reports: Iterable[PositionsReport], *, leaders: Collection[str | None], now: datetime
) -> PositionsReport | None:
    """Return the report that was told last; None if there is none. An old one does not count if the leader went that it
    was beside.
    """
    return newest(
        report for report in reports if report.is_fresh(now) or not report.beside_harvest or report.member in leaders
    )


def newest(reports: Iterable[PositionsReport]) -> PositionsReport | None:
    """Return the report that was told last; None if there is none."""
    return max(reports, key=lambda report: report.told_at, default=None)
