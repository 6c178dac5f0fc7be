"""This project with timers, as a contender."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.contender import Turn
from benchmarks.peers.outbox import AirflowOutbox
from benchmarks.peers.processes import Child
from benchmarks.peers.servers import Workspace
from benchmarks.profiling.child import MARK, Profile, StageTime

_PURGE_SECONDS = 30.0


class Profiled(AirflowOutbox):
    """`profile` is the result of the last turn; None when it was not finished."""

    def __init__(self, name: str, *, rows: int) -> None:
        super().__init__(name)
        self.profile: Profile | None = None
        self._rows = rows

    def command(self, file: Path) -> list[str | Path]:
        return [sys.executable, "-m", "benchmarks.profiling.child", file, f"--rows={self._rows}"]

    @contextmanager
    def turn(self, workspace: Workspace) -> Iterator[Turn]:
        with super().turn(workspace) as turn:
            yield (reading := _ProfiledTurn(turn))
        self.profile = reading.profile


class _ProfiledTurn(Turn):
    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._child: Child | None = None
        self.profile: Profile | None = None

    def begin(self) -> Child:
        self._child = self._turn.begin()
        return self._child

    def begun(self) -> float:
        assert self._child is not None
        _, line = self._child.wait_for(
            f"^{MARK}", within=_PURGE_SECONDS
        )  # consumers see records before they are purged
        found = json.loads(line.removeprefix(MARK))
        self.profile = Profile(**{**found, "stages": [StageTime(**stage) for stage in found["stages"]]})
        return self._turn.begun()
