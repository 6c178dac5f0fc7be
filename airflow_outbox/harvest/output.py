"""Output of a process that harvests: events on stdout, one JSON object a line (NDJSON), and its log on stderr.

None of it holds the harvest up. Whoever reads it may hang (a log collector, a pager, Ctrl-S in a terminal), and a disk
may be full. So lines are handed to a thread, which writes them, and waits where it must.

- Lines come whole and in order.
- Those that can't be written yet are kept, 10,000 at most. Beyond that the oldest is dropped. When something can be
  written again, a line says how many were dropped there.
- When the reader has gone away, nothing is kept any more.
"""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from threading import Condition, Thread
from typing import TextIO

_KEPT_LINES = 10_000
_RETRY_INTERVAL = 1.0
_begun: list[Output] = []


class Output:
    """A text stream whose `write` never waits. It writes to `stream`, unless that is closed (None).

    `dropped` makes the line that says how many were dropped.
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        dropped: Callable[[int], str] = "{} lines were dropped: they could not be written\n".format,
    ) -> None:
        self._descriptor = None if stream is None else os.dup(stream.fileno())  # which nobody else closes
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._say_dropped = dropped
        self._changed = Condition()
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._is_writing = False
        self._thread: Thread | None = None

    def write(self, line: str) -> None:
        """Have a line written, which has its end."""
        if self._descriptor is None:
            return
        with self._changed:
            if len(self._lines) >= _KEPT_LINES:
                self._lines.popleft()
                self._dropped += 1
            self._lines.append(line)
            if self._thread is None:
                self._thread = Thread(target=self._write_all, name="outbox-output", daemon=True)
                self._thread.start()
                _begun.append(self)
            self._changed.notify_all()

    def flush(self) -> None:
        """Nothing: the thread writes each line at once."""

    def drain(self, patience: float) -> None:
        """Wait until everything is written, for at most `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._is_writing), patience)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                self._is_writing = True
                line = self._say_dropped(self._dropped) if self._dropped else self._lines.popleft()
                self._dropped = 0
            if not self._write(line.encode(self._encoding, "backslashreplace")):
                with self._changed:
                    self._descriptor = None
                    self._lines.clear()

    def _write(self, rest: bytes) -> bool:
        """Write a whole line, however long that takes. Return whether there is still a reader."""
        assert self._descriptor is not None
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as error:
                if error.errno == errno.EPIPE:
                    return False
                time.sleep(_RETRY_INTERVAL)  # such as a disk that is full
        return True


@cache
def to_stderr() -> Output:
    """Return the one output to stderr: the log and an error at the end keep their order."""
    return Output(sys.stderr)


def drain(patience: float) -> None:
    """Wait until all output is written, for at most `patience` seconds."""
    deadline = time.monotonic() + patience
    for output in _begun:
        output.drain(max(0, deadline - time.monotonic()))


class NdjsonEvents:
    """Writes each event as a line."""

    def __init__(self, stream: TextIO | None) -> None:
        self._output = Output(stream, dropped=lambda count: _event_line("dropped", lines=count))

    def __call__(self, event: str, /, **fields: object) -> None:
        self._output.write(_event_line(event, **fields))

    def pass_on(self, event: Mapping[str, object]) -> None:
        """Write an event of another process, which has its name and time."""
        self._output.write(json.dumps(event) + "\n")


def _event_line(event: str, /, **fields: object) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"event": event, "time": now, **fields}) + "\n"
