"""Run a command, and end all its descendants when it ends or is to end.

Run as a script: `python -I -S descendants.py GRACE_SECONDS COMMAND…`. `airflow standalone` starts processes that start
processes, some in process groups and sessions of their own, and ends without all of them. This process is a subreaper:
it adopts the orphans, so it can find every one. At SIGTERM or SIGINT the command gets SIGINT. When the command has
ended, or after the grace, the remaining processes are killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CHECK_SECONDS = 0.1


def run(command: list[str], *, grace: float) -> int:
    """Run the command until it ends or this process is signalled; return its exit status as a shell would."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A handler and not a mask, which the command would inherit. It also replaces the ignored SIGINT that a shell
        # gives its background jobs.
        signal.signal(number, lambda received, _: asked.append(received))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # The starter may have asked for SIGKILL at its own end, which would leave the rest behind.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    deadline = float("inf")
    while (status := _reaped(child.pid)) is None and time.monotonic() < deadline:
        if asked and deadline == float("inf"):
            os.kill(child.pid, signal.SIGINT)
            deadline = time.monotonic() + grace
        time.sleep(_CHECK_SECONDS)
    _kill_descendants()
    return 128 + signal.SIGKILL if status is None else status


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _reaped(pid: int) -> int | None:
    """Collect every child that has ended, also adopted ones; return the exit status of `pid` if it was among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == pid:
                code = os.waitstatus_to_exitcode(ended[1])
                found = code if code >= 0 else 128 - code
    return found


def _kill_descendants() -> None:
    """Kill until none is left: a process may fork while its siblings are being killed."""
    while found := list(_descendants(os.getpid())):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reaped(0)
        time.sleep(0.01)


def _descendants(pid: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in parentheses, may hold spaces and parentheses; the parent's id is the second field after
                # it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(pid, []))
    for descendant in found:
        found += children.get(descendant, [])
        yield descendant


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], grace=float(sys.argv[1])))
