"""Clocks of single processes, set while these run: by faketime's library, which answers whenever they ask the time."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from airflow_outbox.demo.embedded.unprivileged import reachable_programs, server_user

_UNPACKED = Path(__file__).resolve().parents[2] / ".dev"  # by ./dev
_LIBRARY = "usr/lib*/**/libfaketimeMT.so.1"
_WAITS = Path(__file__).with_name("timed_waits.c")


class Clock:
    """The clock of the processes that are started by `command`, or inside `started`, and of their children.

    It is right at first. A process follows within a second or two when it is set. Like a real clock, it does not change
    the monotonic one.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is a new one, which the servers' user can reach."""
        folder.mkdir()
        self._file = folder / "clock"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": f"{_timed_waits(folder)}:{_faketime()}",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # else each timed wait of Java ends at once, and so keeps it busy
            "FAKETIME_CACHE_DURATION": "1",
        }

    def set(self, seconds: int) -> None:
        """Let it differ from the right time by so many seconds."""
        changed = self._file.with_suffix(".new")
        changed.write_text(f"{seconds:+d}")
        changed.chmod(0o644)
        changed.replace(self._file)

    def command(self, command: Sequence[str]) -> list[str]:
        return ["env", *(f"{name}={value}" for name, value in self.environment.items()), *command]

    @contextmanager
    def started(self) -> Iterator[None]:
        """The servers that are started meanwhile have this clock."""
        with patch.dict(os.environ, self.environment):
            yield


def _faketime() -> Path:
    """The library, where the servers' user can read it."""
    unpacked = _UNPACKED / "faketime"
    found = next(unpacked.glob(_LIBRARY), None)
    if found is None:
        installed = next(Path("/").glob(_LIBRARY), None)
        assert installed, "faketime is missing: run the tests by ./dev test, or install it"
        return installed
    here = reachable_programs(unpacked, ["usr"], sample="usr/bin/faketime", name="faketime", user=server_user())
    return here / found.relative_to(unpacked)


def _timed_waits(folder: Path) -> Path:
    library = folder / "timed_waits.so"
    unpacked = _UNPACKED / "tcc" / "usr"
    own = next(unpacked.glob("lib/*/tcc"), None)
    compiler = [unpacked / "bin" / "tcc", f"-B{own}"] if own else [shutil.which("tcc") or shutil.which("cc")]
    assert compiler[0], "tcc is missing: run the tests by ./dev test, or install it"
    subprocess.run([*compiler, "-shared", "-fPIC", "-nostdlib", "-o", library, _WAITS], check=True)
    library.chmod(0o755)
    return library
