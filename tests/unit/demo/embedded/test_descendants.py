"""The script that runs a command and ends everything that came of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.harvesting import PATIENCE, wait_until

from airflow_outbox.demo.embedded import descendants

FAMILY = """
import os, signal, subprocess, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
same_group = subprocess.Popen(sleep)
own_session = subprocess.Popen(sleep, start_new_session=True)
orphan = int(subprocess.run(["sh", "-c", "sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True).stdout)
try:
    print(os.getpid(), same_group.pid, own_session.pid, orphan, flush=True)
    if sys.argv[1] != "brief":
        time.sleep(600)
except KeyboardInterrupt:
    sys.exit(7)
sys.exit(5)
"""


def run(family: Path, kind: str) -> tuple[subprocess.Popen[str], list[int]]:
    grace = "0.5" if kind == "stubborn" else "600"  # a busy machine may need more
    command = [sys.executable, "-I", "-S", descendants.__file__, grace, sys.executable, str(family), kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as announcement:
        return process, [int(pid) for pid in announcement.readline().split()]


@pytest.fixture
def family(tmp_path: Path) -> Path:
    path = tmp_path / "family.py"
    path.write_text(FAMILY)
    return path


@pytest.mark.parametrize(("kind", "status"), [("obedient", 7), ("stubborn", 137), ("brief", 5)])
def test_nothing_that_came_of_the_command_is_left(family: Path, kind: str, status: int) -> None:
    process, pids = run(family, kind)
    assert len(pids) == 4
    if kind != "brief":
        process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == status
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


def test_it_ends_with_the_process_that_started_it(family: Path) -> None:
    starter = [sys.executable, "-c", "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"]
    command = [sys.executable, "-I", "-S", descendants.__file__, "0.5", sys.executable, str(family), "obedient"]
    with subprocess.Popen([*starter, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    wait_until(lambda: not [pid for pid in pids if psutil.pid_exists(pid)])
