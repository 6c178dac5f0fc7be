"""Find a Java that Kafka and Spark run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from airflow_outbox.errors import OutboxError

LEAST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')


class JavaMissingError(OutboxError):
    """No Java 17 or newer was found. Install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."""


def find_java() -> Path:
    """Return the `java` command of the first Java 17 or newer: in JAVA_HOME, then PATH, then in `/usr/lib/jvm`.

    Raises `JavaMissingError`, which names what was found instead.
    """
    unfit = []
    for command in _candidates():
        version = _version(command)
        if version >= LEAST_JAVA:
            return command
        unfit.append(f"{command} is version {version}" if version else f"{command} does not run")
    if unfit:
        raise JavaMissingError(f"{JavaMissingError.__doc__} Found: {'; '.join(unfit)}.")
    raise JavaMissingError


def java_home(command: Path) -> Path:
    """The JAVA_HOME that belongs to a `java` command."""
    return command.resolve().parent.parent


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"))


def _version(command: Path) -> int:
    """The major version, or 0 when the command does not run."""
    try:
        answer = subprocess.run(
            [command, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(answer.stderr)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    print(find_java())
