"""Tests that run at the same time: each belongs to one part, and all names in `distribution` exist."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.distribution import DIVIDED, LONGEST_FIRST, TOGETHER, Room, Turn, in_order, part_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("nodeid", "part"),
    [
        ("tests/unit/test_names.py::test_one[a/b]", "tests/unit/test_names.py"),
        ("tests/integration/spark/test_batch.py::test_one", "tests/integration/spark/"),
        ("tests/simulation/test_planted.py::test_alone", "tests/simulation/test_planted.py, alone"),
        ("tests/faults/test_names.py::test_timed", "tests/faults/test_names.py, timed"),
        ("tests/secure/test_names.py::test_timed", "tests/secure/, timed"),
        ("tests/simulation/test_planted.py::test_one[a::b]", "tests/simulation/test_planted.py::test_one[a::b]"),
    ],
)
def test_a_test_belongs_to_a_part(nodeid: str, part: str) -> None:
    rooms = {f"tests/{folder}/test_names.py::test_timed": Room.TIMED for folder in ("faults", "secure")}
    assert part_of(nodeid, {**rooms, "tests/simulation/test_planted.py::test_alone": Room.ALONE}) == part


@pytest.mark.parametrize("place", [*DIVIDED, *LONGEST_FIRST, *TOGETHER])
def test_every_place_that_is_named_has_tests(place: str) -> None:
    assert (ROOT / place).is_file() or any((ROOT / place).rglob("test_*.py"))


class Item:
    """A test, as far as its place in the order depends on it."""

    def __init__(self, nodeid: str, marker: str = "") -> None:
        self.nodeid = nodeid
        self._marker = marker

    def get_closest_marker(self, name: str) -> str | None:
        return self._marker if name == self._marker else None


def test_they_begin_by_room_and_the_longest_first() -> None:
    airflow, faults, unit = (f"tests/{folder}/test_names.py" for folder in ("integration/airflow", "faults", "unit"))
    alone = Item(f"{unit}::alone", "alone")
    timed = [Item(f"{file}::timed", "timed") for file in (airflow, faults, unit)]
    shared = [Item(f"{file}::shared") for file in (airflow, faults, unit)]
    items: Any = [alone, *reversed(timed), *reversed(shared)]
    assert in_order(items) == [*shared, *timed, alone]


class Processes:
    """Processes that enter rooms, each in a thread of its own."""

    def __init__(self, locks: Path) -> None:
        self._locks = locks
        self._started: list[Turn] = []

    def start(self) -> Turn:
        self._started.append(Turn(self._locks))
        return self._started[-1]

    def close(self) -> None:
        for turn in self._started:
            turn.close()

    def enter(self, turn: Turn, room: Room) -> threading.Event:
        """The event that says that it has entered."""
        entered = threading.Event()

        def run() -> None:
            turn.enter(room)
            entered.set()

        threading.Thread(target=run, daemon=True).start()
        return entered


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with closing(Processes(tmp_path)) as processes:
        yield processes


def test_timed_ones_wait_until_none_is_shared_and_run_beside_one_another(processes: Processes) -> None:
    shared, first, second = processes.start(), processes.start(), processes.start()
    entered = [processes.enter(turn, Room.TIMED) for turn in (first, second)]
    assert not any(each.wait(0.1) for each in entered)
    shared.enter(Room.SHARED)  # the next test of those that are still there does not wait
    shared.close()
    assert all(each.wait(60) for each in entered)


def test_the_last_shared_ones_become_timed_together(processes: Processes) -> None:
    turns = [processes.start() for _ in range(4)]
    entered = [processes.enter(turn, Room.TIMED) for turn in turns]
    assert all(each.wait(60) for each in entered)


def test_what_is_alone_waits_for_all_others_and_lets_none_begin(processes: Processes) -> None:
    shared, timed, alone, next_one = (processes.start() for _ in range(4))
    entered = processes.enter(alone, Room.ALONE)
    timed_entered = processes.enter(timed, Room.TIMED)
    next_entered = processes.enter(next_one, Room.ALONE)
    assert not timed_entered.wait(0.1)
    shared.close()
    assert timed_entered.wait(60)
    assert not entered.wait(0.1)
    assert not next_entered.is_set()
    third = processes.enter(timed, Room.ALONE)  # from one room to the other, without a moment between for others
    begun = {id(turn): event for turn, event in ((alone, entered), (next_one, next_entered), (timed, third))}
    by_id = {id(turn): turn for turn in (alone, next_one, timed)}
    for left in (3, 2, 1):
        [running] = wait_for_one(begun)
        assert not any(event.wait(0.1) for place, event in begun.items() if place != running), left
        by_id[running].close()
        del begun[running]


def wait_for_one(begun: dict[int, threading.Event]) -> list[int]:
    """Those that have entered, as soon as one has."""
    deadline = time.monotonic() + 60
    while not (found := [place for place, event in begun.items() if event.is_set()]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_nobody_goes_back(processes: Processes) -> None:
    turn = processes.start()
    turn.enter(Room.ALONE)
    turn.enter(Room.SHARED)
    other = processes.enter(processes.start(), Room.ALONE)
    assert not other.wait(0.1)
    turn.close()
    assert other.wait(60)
