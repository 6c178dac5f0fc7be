"""Small file systems, which can be filled."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 1024 * 1024


@contextlib.contextmanager
def small_file_system(folder: Path, size: int) -> Iterator[Path | None]:
    """Mount one of so many bytes in a new folder; None for who may not mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(ballast: Path) -> None:
    """Write until there is no more room."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


@dataclass(frozen=True, slots=True)
class Disk:
    """A small file system with a tablespace; no folder where none can be mounted."""

    tablespace: str
    folder: Path | None

    def fill(self) -> None:
        """Write until there is no more room."""
        if self.folder is not None:
            fill(self.folder / "ballast")
