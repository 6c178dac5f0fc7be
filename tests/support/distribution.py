"""Which tests share a process when several run at a time, and which may run beside which.

A file's tests run in one process, one after another, for they share servers. So do a folder's, where its servers take
long to start. A file of tests that only compute is divided into single tests. Tests that bound seconds come when all
others have ended: first those that mostly wait, beside one another, then those that need all of the machine alone.
"""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import IO

import pytest
from xdist.scheduler import LoadScopeScheduling


class Room(StrEnum):
    """The kinds of tests, by what may run beside them, in order; names of markers, but for the first one."""

    SHARED = "shared"
    TIMED = "timed"
    ALONE = "alone"


ROOMS = "outbox/rooms"
"""Where pytest's cache has the rooms of tests, by id: the scheduler, in another process, sees only ids."""
TOGETHER = (
    "tests/faults/spark/",
    "tests/integration/airflow/",
    "tests/integration/spark/",
    "tests/integration/ui/",
    "tests/secure/",
    "tests/timings/airflow/",
    "tests/timings/ui/",
)
DIVIDED = (
    "tests/simulation/test_histories.py",
    "tests/simulation/test_planted.py",
)
LONGEST_FIRST = (
    "tests/integration/airflow/",
    "tests/faults/spark/",
    "tests/integration/spark/",
    "tests/faults/",
    "tests/integration/ui/",
    "tests/hostile/",
    "tests/integration/test_demo.py",
    "tests/secure/",
    "tests/integration/",
    "tests/simulation/",
    "tests/timings/airflow/",
    "tests/timings/",
)
"""In this order they begin, and all others after them: no long part is left to the end.

The demo has an Airflow of its own. It comes when the other one has long been started, for each takes much of a machine.
"""


def room_of(item: pytest.Item) -> Room:
    return next((room for room in (Room.ALONE, Room.TIMED) if item.get_closest_marker(room)), Room.SHARED)


def tell_the_scheduler(cache: pytest.Cache, items: Sequence[pytest.Item]) -> None:
    """Which tests have another room than most."""
    cache.set(ROOMS, {item.nodeid: room for item in items if (room := room_of(item)) is not Room.SHARED})


def part_of(nodeid: str, rooms: Mapping[str, str]) -> str:
    """The part that a test belongs to. A part runs in one process, in one room."""
    file = nodeid.partition("::")[0]
    room = rooms.get(nodeid, Room.SHARED)
    if file in DIVIDED and room == Room.SHARED:
        return nodeid
    place = next((folder for folder in TOGETHER if file.startswith(folder)), file)
    return place if room == Room.SHARED else f"{place}, {room}"


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """By room, and the longest first."""

    def order(item: pytest.Item) -> tuple[int, int]:
        room = room_of(item)
        found = (number for number, place in enumerate(LONGEST_FIRST) if item.nodeid.startswith(place))
        place = next(found, len(LONGEST_FIRST))
        return list(Room).index(room), place

    return sorted(items, key=order)


class Turn:
    """The room that this process is in. It only goes on to later ones, and enters each when the earlier ones are empty.

    `locks` is a folder of all processes. A process in a room has a lock on the room's file. It gets the lock of the
    next room before it gives up that one, so that none which comes later overtakes it.
    """

    def __init__(self, locks: Path) -> None:
        self._files: Mapping[Room, IO[str]] = {room: (locks / room).open("w") for room in Room}
        self._room = Room.SHARED
        fcntl.flock(self._files[Room.SHARED], fcntl.LOCK_SH)

    def enter(self, room: Room) -> None:
        rooms = list(Room)
        if rooms.index(room) <= rooms.index(self._room):
            return
        own, self._room = self._files[self._room], room
        if room is Room.TIMED:
            fcntl.flock(self._files[room], fcntl.LOCK_SH)
            fcntl.flock(own, fcntl.LOCK_UN)
        else:  # one at a time, who must not keep the one before it waiting
            fcntl.flock(own, fcntl.LOCK_UN)
            fcntl.flock(self._files[room], fcntl.LOCK_EX)
        for earlier in rooms[: rooms.index(room)]:
            fcntl.flock(self._files[earlier], fcntl.LOCK_EX)
            fcntl.flock(self._files[earlier], fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave the room. Once more does nothing."""
        for file in self._files.values():
            if not file.closed:
                fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked has the file, too
                file.close()


class Scheduling(LoadScopeScheduling):
    """Gives a process the next part when it is about to end its last one."""

    @cached_property
    def _rooms(self) -> Mapping[str, str]:
        return dict(self.config.cache.get(ROOMS, {}))

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid, self._rooms)
