"""How quietly harvesters wait on bad days: their processor time, and the lines that they write."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from secure.bad_days import BAD_DAYS, LIKE_OTHERS
from secure.conftest import MakeOutbox, Start
from secure.disks import Disk
from secure.outliving import outlives_a_broker_whose_disk_is_full, outlives_what_is_mended
from support.harvesting import Process

pytestmark = pytest.mark.alone

WATCHED = 5.0
MOST_CPU = 0.5  # seconds while watched; a loop that waits for nothing takes them all
MOST_LINES = 20  # while watched; five of them are progress


def cpu_seconds(process: Process) -> float:
    fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lines(process: Process) -> int:
    assert process.log is not None
    return len(process.events) + len(process.log.read_text().splitlines())


@dataclass(frozen=True, slots=True)
class Watch:
    """How busy a process was while it was watched."""

    cpu: float
    lines: int


def watch(processes: dict[str, Process]) -> dict[str, Watch]:
    before = {name: (cpu_seconds(process), lines(process)) for name, process in processes.items()}
    time.sleep(WATCHED)
    return {
        name: Watch(cpu_seconds(process) - before[name][0], lines(process) - before[name][1])
        for name, process in processes.items()
    }


def assert_quiet(processes: dict[str, Process]) -> None:
    watched = watch(processes)
    assert {name: seen for name, seen in watched.items() if seen.cpu > MOST_CPU or seen.lines > MOST_LINES} == {}


@pytest.mark.long  # a dozen harvesters at once
@pytest.mark.usefixtures("roles")
def test_they_wait_quietly_for_what_has_to_be_mended(disks: list[Disk], make_outbox: MakeOutbox, start: Start) -> None:
    days = {name: day for name, day in BAD_DAYS.items() if name not in LIKE_OTHERS}
    outlives_what_is_mended(days, make_outbox, start, disks, meanwhile=assert_quiet)


@pytest.mark.long
def test_one_waits_quietly_for_a_broker(database: str, server_folder: Path, kafka_classpath: str, start: Start) -> None:
    outlives_a_broker_whose_disk_is_full(database, server_folder, kafka_classpath, start, meanwhile=assert_quiet)
