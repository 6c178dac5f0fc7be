"""Absences: what a leader does about a backup that it can't reach, where only the primary is required.

It tries again for a while. Then it resigns, once, for another member may reach the cluster. If it leads again and still
can't reach it, it goes on without: it detaches the cluster. So a member that is cut off from one cluster alone detaches
nothing while others lead well.

The primary is never detached.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_FORGOTTEN_AFTER = 10  # times the patience, and at least
_LEAST_FORGOTTEN_AFTER = 120.0  # seconds: in the meantime, each other member may lead for a while


class Absent(Enum):
    """The next step."""

    TRY_AGAIN = "try again"
    RESIGN = "resign"
    DETACH = "detach"


@dataclass(slots=True)
class _Absence:
    since: float
    """When the cluster could not be reached first, under this leadership."""
    last: float
    has_resigned: bool = False


class Absences:
    """The backups that a member could not reach since it led well. `patience` is in seconds; None: all are required."""

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._absences: dict[str, _Absence] = {}

    def failed(self, cluster: str, now: float) -> Absent:
        """A term has failed because of a backup. Return what to do."""
        if self._patience is None:
            return Absent.TRY_AGAIN
        known = self._absences.get(cluster)
        forgotten_after = max(_LEAST_FORGOTTEN_AFTER, _FORGOTTEN_AFTER * self._patience)
        if known is None or now - known.last > forgotten_after:
            known = self._absences[cluster] = _Absence(now, now)
        known.last = now
        if now - known.since < self._patience:
            return Absent.TRY_AGAIN
        if known.has_resigned:
            return Absent.DETACH
        known.has_resigned, known.since = True, now
        return Absent.RESIGN

    def reached_all(self) -> None:
        """A term has begun to harvest: all clusters that count are there."""
        self._absences.clear()
