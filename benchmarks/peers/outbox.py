"""This project, as a user runs it: `airflow-outbox init`, then `airflow-outbox harvest` as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from airflow_outbox.harvest.config import Limits
from benchmarks.peers.contender import Contender, Turn
from benchmarks.peers.processes import Child, ContenderError
from benchmarks.peers.rows import OUTBOX
from benchmarks.peers.servers import Workspace

COMMAND = Path(sys.executable).with_name("airflow-outbox")
_START_SECONDS = 120.0


class AirflowOutbox(Contender):
    """`airflow-outbox harvest`; `settings` are added to its configuration, which otherwise names only the servers."""

    layout = OUTBOX
    timed_from = "its event `view`: it leads, and takes over what earlier leaders left"

    wakes = (
        f"it asks Postgres again after {1000 * Limits().poll_interval:g} ms, while nothing comes after twice as long "
        "each time, up to a limit (limits.poll_interval)"
    )

    def __init__(self, name: str, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(name, settings)
        self.one_at_a_time = self.settings.get("delivery") == "at_least_once"

    def command(self, file: Path) -> list[str | Path]:
        """The command that harvests with this configuration."""
        return [COMMAND, "harvest", "-f", file]

    def servers(self, workspace: Workspace) -> Mapping[str, object]:
        """Return how it reaches the servers."""
        return {"data_source": workspace.dsn, "kafka": {"bootstrap.servers": workspace.bootstrap}}

    def made(self, workspace: Workspace) -> Path:
        """Make the outbox. Returns the configuration's file; raises ContenderError."""
        file = workspace.folder / "outbox.yaml"
        file.write_text(yaml.safe_dump({**self.servers(workspace), **self.settings}))
        made = subprocess.run([COMMAND, "init", "-f", file], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if made.returncode != 0:
            raise ContenderError(f"airflow-outbox init: {made.stderr.strip()}")
        return file

    @contextmanager
    def turn(self, workspace: Workspace) -> Iterator[Turn]:
        turn = _OutboxTurn(self.command(self.made(workspace)), workspace)
        try:
            yield turn
        finally:
            turn.end()


class _OutboxTurn(Turn):
    def __init__(self, command: list[str | Path], workspace: Workspace) -> None:
        self._command = command
        self._workspace = workspace
        self._child: Child | None = None
        self._begun = 0.0

    def begin(self) -> Child:
        log = self._workspace.folder / "harvest.log"
        self._child = Child(self._command, log=log)
        self._begun, _ = self._child.wait_for('"event": "view"', within=_START_SECONDS)
        return self._child

    def begun(self) -> float:
        return self._begun

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
