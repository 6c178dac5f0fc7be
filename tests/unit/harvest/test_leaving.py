"""A program that has used Kafka's client ends with its own status, whatever it left behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FULL = "/dev/full"


def ended(
    body: str, *, into: str | int = os.devnull, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A process that leaves after this body of a function."""
    imports = "import atexit, sys, threading\nfrom airflow_outbox.harvest.leaving import leave_after"
    indented = [f"    {line}" for line in body.splitlines()]
    code = "\n".join([imports, "def program():", *indented, "leave_after(program)"])
    with open(into, "w") as output:
        return subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE if into == os.devnull else output,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
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


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("body", ["print('said')", "print('said', flush=True)", "import click; click.echo('said')"])
def test_output_that_can_not_be_written_is_no_success(body: str, environment: dict[str, str]) -> None:
    done = ended(body, into=FULL, environment=environment)
    assert done.returncode == 1
    assert done.stderr == "Error: the output can't be written: No space left on device\n"


def test_an_error_about_something_else_keeps_its_traceback() -> None:
    done = ended("open('/dev/full/no')", into=FULL)
    assert (done.returncode, "Traceback" in done.stderr) == (1, True)


def test_a_reader_that_has_gone_away_is_told_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = ended("print('said')", into=writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_letters_that_the_encoding_lacks_come_as_escapes() -> None:
    done = ended("print('東京')", environment={"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u6771\\u4eac\n", "")
