"""When consumers that read committed could see all of a topic, and whether it is right. No contender's word counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from airflow_outbox.errors import OutboxError
from benchmarks.peers.count import Found
from benchmarks.peers.servers import PARTITIONS, ROOT, Workspace

Changes = Sequence[tuple[float, Sequence[int]]]
"""The last stable offsets, one a partition, and the moments (`time.monotonic()`) at which they were first seen."""


class RefusedError(OutboxError):
    """A turn gets no figure: records were lost, doubled or put out of order, or it never came to an end."""


@dataclass(frozen=True, slots=True)
class FirstAndLast:
    """The moments, by `time.monotonic()`, at which the first record and then every record could be read."""

    first: float
    all: float


class Sightings:
    """Watches a topic from now on. It has a process, so it is a context manager."""

    def __init__(self, workspace: Workspace, *, rows: int, patience: float) -> None:
        """`patience`: seconds without change after which it counts as the end."""
        self.changes: Changes = ()
        """As far as they were told when the wait ended."""
        self._workspace = workspace
        self._rows = rows
        command = [workspace.bootstrap, workspace.topic, f"--partitions={PARTITIONS}", f"--records={rows}"]
        self._watch = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.watch", *command, f"--patience={patience}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._watch.stdin is not None
        assert self._watch.stdout is not None
        self._watch.stdin.close()
        self._watch.wait()
        self._watch.stdout.close()

    def wait(self) -> FirstAndLast:
        """Wait until all rows can be read; call it when the contender has begun to publish.

        Raises RefusedError when they never can, or not correctly.
        """
        assert self._watch.stdin is not None
        self._watch.stdin.write("begun\n")
        self._watch.stdin.flush()
        while True:
            told = self._read()
            self.changes = told["changes"]
            found = self.count()
            # The count comes later than the notes, and so may find records whose ends are not noted yet.
            at_the_end = first_beyond(self.changes, [last + 1 for last in found.last_offsets], together=True)
            if told["state"] == "stalled" or (not found.lost and at_the_end is not None):
                break
        self._require_right(found)
        at_first = first_beyond(self.changes, [0] * PARTITIONS, together=False)
        if at_first is None or at_the_end is None:
            raise RefusedError("the offsets went back while the topic was watched")
        return FirstAndLast(first=at_first, all=at_the_end)

    def judge(self) -> None:
        """Check all records against the rows, once the contender has ended. Raises RefusedError."""
        self._require_right(self.count())

    def _require_right(self, found: Found) -> None:
        if found.fault:
            raise RefusedError(f"of {self._rows} rows: {found.fault}")

    def count(self) -> Found:
        """Read the topic."""
        command = [
            self._workspace.bootstrap,
            self._workspace.topic,
            f"--partitions={PARTITIONS}",
            f"--rows={self._rows}",
        ]
        counted = subprocess.run(
            [sys.executable, "-m", "benchmarks.peers.count", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            cwd=ROOT,
        )
        return Found(**json.loads(counted.stdout))

    @property
    def pid(self) -> int:
        """The process that watches."""
        return self._watch.pid

    def _read(self) -> Any:
        assert self._watch.stdout is not None
        line = self._watch.stdout.readline()
        if not line:
            raise RefusedError("the watch over the topic has ended: its own words say why")
        return json.loads(line)


def first_beyond(changes: Changes, ends: Sequence[int], *, together: bool) -> float | None:
    """The first moment, if any, at which all partitions (`together`) could be read to these ends, or any one beyond
    its end.
    """
    for moment, offsets in changes:
        pairs = zip(offsets, ends, strict=True)
        if all(have >= end for have, end in pairs) if together else any(have > end for have, end in pairs):
            return moment
    return None
