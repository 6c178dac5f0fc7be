"""Members as processes: stopped and continued, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

from support.harvesting import Process, wait_until


def moment_of(event: dict[str, Any]) -> float:
    """When a member wrote an event, on the system's clock."""
    return datetime.fromisoformat(event["time"]).timestamp()


def stop(member: Process) -> None:
    """Stop a member's process (SIGSTOP), and wait until it is."""
    os.kill(member.popen.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(member))


def go_on(member: Process) -> int:
    """Let a stopped member go on; how many events it had announced."""
    since = len(member.events)
    os.kill(member.popen.pid, signal.SIGCONT)
    return since


def is_stopped(member: Process) -> bool:
    """Whether a member's process is stopped (SIGSTOP)."""
    return Path(f"/proc/{member.popen.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def processes_of(member: Process) -> list[int]:
    """Processes of a member's session that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == member.popen.pid:
                    found.append(int(entry.name))
    return found
