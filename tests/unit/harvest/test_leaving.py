"""A program that has used Kafka's client ends with its own status, whatever it left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


def ended(body: str, *, into: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A process that leaves after this body of a function."""
    imports = "import atexit, sys, threading\nfrom airflow_outbox.harvest.leaving import leave_after"
    indented = [f"    {line}" for line in body.splitlines()]
    code = "\n".join([imports, "def program():", *indented, "leave_after(program)"])
    with (into or Path("/dev/null")).open("w") as output:
        return subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE if into is None else output,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("pass", 0),
        ("return 7", 0),
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('no such thing')", 1),
        ("raise ValueError('no such thing')", 1),
        ("raise KeyboardInterrupt", 1),
    ],
)
def test_the_status_is_what_the_interpreter_would_end_with(body: str, status: int) -> None:
    done = ended(body)
    assert done.returncode == status
    assert ("no such thing" in done.stderr) == ("no such thing" in body)


def test_output_is_written_and_exit_functions_run() -> None:
    done = ended("print('said', end='')\natexit.register(print, ', done', end='')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "said, done", "")


def test_threads_that_never_end_do_not_hold_it() -> None:
    assert ended("threading.Thread(target=threading.Event().wait).start()").returncode == 0


def test_output_that_can_not_be_written_is_no_success() -> None:
    assert ended("print('said')", into=FULL).returncode == 1
