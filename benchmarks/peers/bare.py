"""The bare loop: a script that selects, produces and deletes without any care. It shows what care costs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.peers.contender import Contender, Turn
from benchmarks.peers.goharvest import TABLE
from benchmarks.peers.processes import Child, ContenderError
from benchmarks.peers.rows import OUTBOX
from benchmarks.peers.servers import Workspace

_END_SECONDS = 600.0
_LAST_LINE = re.compile(r" (\d+) records (\d+) records/s$")


class BareLoop(Contender):
    """`SCRIPT DSN BOOTSTRAP BATCH`, over goharvest's table. It ends when that is empty, and says how fast it was."""

    layout = OUTBOX
    timed_from = "its own clock's start, when it is connected: its last line less the duration that this line tells"
    wakes = "it does not: it ends when the table is empty"

    def __init__(self, name: str, script: Path, *, batch: int) -> None:
        super().__init__(name, {"batch": batch})
        self._script = script.resolve()
        self._batch = batch

    @contextmanager
    def turn(self, workspace: Workspace) -> Iterator[Turn]:
        with psycopg.connect(workspace.dsn, autocommit=True) as connection:
            connection.execute(TABLE)
        turn = _BareTurn(self._script, self._batch, workspace)
        try:
            yield turn
        finally:
            turn.end()


class _BareTurn(Turn):
    def __init__(self, script: Path, batch: int, workspace: Workspace) -> None:
        self._script = script
        self._batch = batch
        self._workspace = workspace
        self._child: Child | None = None

    def begin(self) -> Child:
        self._child = Child(
            [sys.executable, self._script, self._workspace.dsn, self._workspace.bootstrap, str(self._batch)],
            log=self._workspace.folder / "bare-loop.log",
            environment={"PYTHONUNBUFFERED": "1"},
        )
        return self._child

    def begun(self) -> float:
        assert self._child is not None
        self._child.wait_until_ended(within=_END_SECONDS)
        moment, line = self._child.lines[-1]
        found = _LAST_LINE.search(line)
        if found is None:
            raise ContenderError(f"the bare loop's last line does not say how fast it was: {line}")
        return moment - int(found[1]) / int(found[2])

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
