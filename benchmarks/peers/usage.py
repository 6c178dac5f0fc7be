"""The resources that processes and the whole machine use during a measurement, noted ten times a second, from /proc."""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

_INTERVAL = 0.1
_LOOKS_A_CENSUS = 10
_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(slots=True)
class _Group:
    """Processes whose use is added up: one, or one with all its descendants."""

    first: int
    with_family: bool
    members: list[int]
    moments: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peaks: dict[int, int] = field(default_factory=dict)

    def at(self, moment: float) -> float:
        """Processor time used until then, interpolated between two looks."""
        place = bisect_left(self.moments, moment)
        if not self.moments:
            return 0.0
        if place in (0, len(self.moments)):
            return self.seconds[max(0, place - 1)]
        before, after = self.moments[place - 1], self.moments[place]
        share = (moment - before) / (after - before)
        return self.seconds[place - 1] + share * (self.seconds[place] - self.seconds[place - 1])


class Usage:
    """A context manager that looks until it is left. When a process ends, its last reading stays."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._machine = _Group(first=0, with_family=False, members=[])
        self._stopping = threading.Event()
        self._looking = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._looking.join()

    @property
    def names(self) -> Sequence[str]:
        return [*self._groups]

    def watch(self, name: str, pid: int, *others: int, with_family: bool = False) -> None:
        """Note from now on the use of a process, or of several, and, with `with_family`, of all that the first one
        starts.
        """
        self._groups[name] = _Group(first=pid, with_family=with_family, members=[pid, *others])

    def cpu_seconds(self, name: str, start: float, end: float) -> float:
        """Seconds of one core between two moments of `time.monotonic()`."""
        group = self._groups[name]
        return group.at(end) - group.at(start)

    def others_cores(self, start: float, end: float) -> float:
        """How many cores the rest of the machine, all that is not watched, kept busy meanwhile."""
        busy = self._machine.at(end) - self._machine.at(start)
        return max(0.0, busy - sum(self.cpu_seconds(name, start, end) for name in self._groups)) / (end - start)

    def peak_mb(self, name: str) -> float:
        """The peak memory of the processes, each from its own start (resident; 10^6 bytes)."""
        return sum(self._groups[name].peaks.values()) * 1024 / 1e6

    def _look_on(self) -> None:
        looks = 0
        while not self._stopping.is_set():
            now = time.monotonic()
            self._machine.moments.append(now)
            self._machine.seconds.append(_machine_seconds())
            for group in list(self._groups.values()):
                if group.with_family:
                    # Most processes have children only of their first thread, and asking all threads takes long.
                    family = _family(group.first, all_threads=looks % _LOOKS_A_CENSUS == 0)
                    group.members = sorted({*family, *group.members})
                _look_at(group)
            looks += 1
            self._stopping.wait(_INTERVAL)


def _look_at(group: _Group) -> None:
    """Read a group's use. A process's ended children count with it."""
    total, alive = 0.0, []
    for pid in group.members:
        try:
            # The name, in parentheses, may hold spaces; the fields used after it are utime to cstime.
            used = [int(ticks) for ticks in _text(pid, "stat").rpartition(")")[2].split()[11:15]]
            peak = _PEAK.search(_text(pid, "status"))
        except OSError:
            continue
        total += sum(used if group.with_family else used[:2]) / _TICKS
        alive.append(pid)
        if peak:
            group.peaks[pid] = int(peak[1])
    if alive:
        group.members = alive
        # A process that ends is for a moment counted neither by itself nor by its parent.
        group.seconds.append(max(total, group.seconds[-1] if group.seconds else 0.0))
        group.moments.append(time.monotonic())


def _family(pid: int, *, all_threads: bool) -> list[int]:
    """A process and its descendants; or only those that first threads started."""
    found = [pid]
    for member in found:
        try:
            threads = os.listdir(_PROC / str(member) / "task") if all_threads else [str(member)]
            for thread in threads:
                found += [int(child) for child in _text(member, f"task/{thread}/children").split()]
        except OSError:
            continue
    return found


def _machine_seconds() -> float:
    """Processor time of all cores that is not idle, with what other guests have taken from this machine."""
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = (
        int(ticks) for ticks in (_PROC / "stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + sum(interrupts_and_stolen)) / _TICKS


def _text(pid: int, name: str) -> str:
    return (_PROC / str(pid) / name).read_text()
