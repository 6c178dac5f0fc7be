"""One server process on this machine: it is started, signalled and waited for, and dies with its starter."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow_outbox.demo.embedded import child_guard
from airflow_outbox.errors import OutboxError

_LOG_TAIL_BYTES = 4000


class ServerError(OutboxError):
    """A server did not do what was asked. Its log says why."""


class ServerStartError(ServerError):
    """A server did not start. Its log says why."""


class ServerProcess:
    """A running server. It starts at once; its output is appended to `log`.

    It has a session of its own, so Ctrl-C at a terminal reaches only the process that started it. It dies with that
    process even at SIGKILL (`child_guard` says how).

    `user` is the system user to run as (None: the present one). `abandon_signal` ends the server when its owner is
    gone.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        name: str,
        log: Path,
        abandon_signal: signal.Signals,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._abandon_signal = abandon_signal
        with log.open("ab") as output:
            self._holder = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    child_guard.__file__,
                    str(os.getpid()),
                    str(int(abandon_signal)),
                    user or "",
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )
        assert self._holder.stdout is not None
        with self._holder.stdout as announcement:
            pid = announcement.readline()
        if not pid:
            self._holder.wait()
            raise ServerStartError(self._with_log(f"{name} could not be started"))
        self.pid = int(pid)

    @property
    def running(self) -> bool:
        return self._holder.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal. Nothing happens when the server has ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, number: signal.Signals, *, timeout: float = 120.0) -> None:
        """End the server with this signal, even if it is paused.

        After `timeout` seconds it kills the server and raises `ServerError`.
        """
        self.send(number)
        self.send(signal.SIGCONT)
        try:
            self._holder.wait(timeout)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._holder.wait()
            message = f"{self.name} did not stop within {timeout:.0f} s after {number.name} and was killed"
            raise ServerError(self._with_log(message)) from None

    def wait_until(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Ask `ready` until it says yes.

        If the server ends or `timeout` seconds pass, the server is ended. Raises `ServerStartError` with its
        log's tail.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise ServerStartError(self._with_log(f"{self.name} ended while starting"))
            if time.monotonic() > deadline:
                self.stop(self._abandon_signal)
                raise ServerStartError(self._with_log(f"{self.name} was not ready within {timeout:.0f} s"))
            time.sleep(0.05)

    def _with_log(self, message: str) -> str:
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            tail = log.read().decode("utf-8", "replace").strip()
            return f"{message}. The end of its log, {self.log}:\n{tail}"
        return f"{message}. Its log is {self.log}"
