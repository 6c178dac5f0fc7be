"""Write events, one JSON object a line (NDJSON): the child process for its supervisor, the command for its user."""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from datetime import UTC, datetime
from typing import TextIO

_KEPT_LINES = 10_000


class NdjsonEvents:
    """Writes each event as a line, at once. A reader that has gone away does not stop the harvest."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: str, /, **fields: object) -> None:
        try:
            self._stream.write(_line(event, fields))
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            pass


class PipedEvents:
    """Writes each event to a pipe as a line, and never waits for the reader.

    A supervisor may have been stopped while its child lives and leads: waiting for it would stop the harvest, and
    nobody would take over. Unread lines are kept; beyond 10,000 the oldest is dropped.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._begun = b""  # the rest of a line
        # For all writers to this pipe: the clients' libraries, which log to it, must not wait either.
        os.set_blocking(descriptor, False)

    def __call__(self, event: str, /, **fields: object) -> None:
        self._lines.append(_line(event, fields).encode())
        self._write()

    def close(self, patience: float) -> None:
        """Write what is left, for at most `patience` seconds."""
        deadline = time.monotonic() + patience
        while not self._write() and (left := deadline - time.monotonic()) > 0:
            select.select([], [self._descriptor], [], left)

    def _write(self) -> bool:
        """Write as much as the pipe takes. Return whether that was all."""
        try:
            while self._begun or self._lines:
                self._begun = self._begun or self._lines.popleft()
                self._begun = self._begun[os.write(self._descriptor, self._begun) :]
        except BlockingIOError:
            return False
        except OSError:  # the reader has gone away
            self._lines.clear()
            self._begun = b""
        return True


def _line(event: str, fields: dict[str, object]) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"event": event, "time": now, **fields}) + "\n"
