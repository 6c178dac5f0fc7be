"""A contender's process: started, read line by line, and ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_outbox.demo.embedded import child_guard
from airflow_outbox.errors import OutboxError

_SHOWN_LINES = 20
_STOP_SECONDS = 20.0


class ContenderError(OutboxError):
    """A contender did not do what was asked. Its output says why."""


class Child:
    """A running process and its output, each line with the moment at which it was read.

    It ends with the process that started it, even at SIGKILL (`child_guard` says how).
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`log` takes a copy of the output; `environment` is added to the present one."""
        self.lines: list[tuple[float, str]] = []
        """Moments by `time.monotonic()`, and lines of stdout and stderr."""
        self._log = log
        self._news = threading.Condition()
        self._holder = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                child_guard.__file__,
                str(os.getpid()),
                str(int(signal.SIGKILL)),
                "",
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        with self._holder.stdout as announcement:
            pid = announcement.readline()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not pid:
            raise self._failure(f"{command[0]} could not be started")
        self.pid = int(pid)

    def wait_for(self, pattern: str, *, within: float, after: float = 0.0) -> tuple[float, str]:
        """The first line that matches the pattern and was read after a moment. Raises ContenderError."""
        searched, deadline = 0, time.monotonic() + within
        with self._news:
            while True:
                for found in self.lines[searched:]:
                    if found[0] >= after and re.search(pattern, found[1]):
                        return found
                searched = len(self.lines)
                if self._has_ended:
                    raise self._failure(f"it ended before it wrote {pattern!r}")
                if not self._news.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise self._failure(f"it did not write {pattern!r} within {within:g} s")

    def wait_until_ended(self, *, within: float) -> None:
        """Raises ContenderError when it has not ended in time, or ended in error."""
        try:
            status = self._holder.wait(within)
        except subprocess.TimeoutExpired:
            raise self._failure(f"it did not end within {within:g} s") from None
        self._reader.join()
        if status != 0:
            raise self._failure(f"it ended with status {status}")

    def end(self) -> None:
        """Ask it to end, and kill it when it does not."""
        if self._holder.poll() is None:
            self._send(signal.SIGTERM)
            try:
                self._holder.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._send(signal.SIGKILL)
                self._holder.wait()
        self._reader.join()

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _read(self) -> None:
        assert self._holder.stderr is not None
        with self._holder.stderr as stream, self._log.open("a") as copy:
            for line in stream:
                with self._news:
                    self.lines.append((time.monotonic(), line.rstrip("\n")))
                    self._news.notify_all()
                copy.write(line)
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def _failure(self, message: str) -> ContenderError:
        written = "\n".join(line for _, line in self.lines[-_SHOWN_LINES:])
        return ContenderError(f"{message}; what it wrote last:\n{written}" if written else message)
