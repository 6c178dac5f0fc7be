"""The gate leaves out what it names, and a test has a second chance only where the machine may be at fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.gate import IN_GATE, is_beyond

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
from support.harvesting import PatienceExhaustedError, wait_until

tries = {}

@pytest.mark.parametrize("number", range(NUMBER))
def test_it(number):
    tries[number] = tries.get(number, 0) + 1
    if tries[number] == 1:
        FAILURE
"""


@pytest.mark.parametrize(
    "nodeid", ["tests/timings/faults/test_names.py::test_one", "tests/timings/test_names.py::test_one[a/b::c]"]
)
def test_promises_about_time_are_left_out(nodeid: str) -> None:
    assert is_beyond(nodeid)
    assert not is_beyond(nodeid.replace("timings", "unit"))


@pytest.mark.parametrize("place", [place for place in IN_GATE if "::" in place])
def test_a_test_of_a_folder_that_is_left_out_may_be_played(place: str) -> None:
    assert not is_beyond(place)
    assert is_beyond(place + "_and_another")


def run(folder: Path, failure: str, *, number: int = 1, place: str = "tests") -> tuple[int, str]:
    """The status of a run whose tests fail when they are first tried, and its last lines."""
    file = folder / place / "test_tried.py"
    file.parent.mkdir(parents=True)
    file.write_text(TESTS.replace("NUMBER", str(number)).replace("FAILURE", failure))
    (folder / "pytest.ini").write_text("[pytest]")
    command = [sys.executable, "-m", "pytest", "-p", "support.gate", "-p", "no:cacheprovider", "--max-suite-reruns=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout[-3000:]


def test_what_did_not_come_is_waited_for_once_more_and_named(tmp_path: Path) -> None:
    status, said = run(tmp_path, "wait_until(lambda: False, within=0)")
    assert status == 0, said
    assert "passed when run again: tests/test_tried.py::test_it[0]" in said


def test_an_assertion_is_never_asked_again(tmp_path: Path) -> None:
    status, said = run(tmp_path, "assert False, 'one is lost'")
    assert status == 1, said
    assert "again" not in said


def test_a_simulation_is_never_run_again(tmp_path: Path) -> None:
    status, said = run(tmp_path, "wait_until(lambda: False, within=0)", place="tests/simulation")
    assert status == 1, said


def test_three_of_them_are_red(tmp_path: Path) -> None:
    assert run(tmp_path / "two", "wait_until(lambda: False, within=0)", number=2)[0] == 0
    assert run(tmp_path / "three", "wait_until(lambda: False, within=0)", number=3)[0] == 1
