"""Tests that run at the same time: each belongs to one part, and no name in `distribution` is of the past."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.distribution import AIRFLOW, DIVIDED, LONGEST_FIRST, TOGETHER, part_of, room

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("nodeid", "part"),
    [
        ("tests/unit/test_names.py::test_one[a/b]", "tests/unit/test_names.py"),
        ("tests/integration/spark/test_batch.py::test_one", "tests/integration/spark/"),
        ("tests/simulation/test_planted.py::test_alone", "alone"),
        ("tests/simulation/test_planted.py::test_one[a::b]", "tests/simulation/test_planted.py::test_one[a::b]"),
    ],
)
def test_a_test_belongs_to_a_part(nodeid: str, part: str) -> None:
    assert part_of(nodeid, alone={"tests/simulation/test_planted.py::test_alone"}) == part


@pytest.mark.parametrize("place", [AIRFLOW, *DIVIDED, *LONGEST_FIRST, *TOGETHER])
def test_every_place_that_is_named_has_tests(place: str) -> None:
    assert (ROOT / place).is_file() or any((ROOT / place).glob("test_*.py"))


def test_what_is_alone_waits_for_others_and_lets_none_begin(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()

    def begins(*, alone: bool) -> threading.Event:
        begun = threading.Event()

        def begin() -> None:
            with room(alone=alone, lock=lock):
                begun.set()

        threading.Thread(target=begin, daemon=True).start()
        return begun

    with room(alone=False, lock=lock):
        assert begins(alone=False).wait(10)
        waiting = begins(alone=True)
        assert not waiting.wait(0.1)
    assert waiting.wait(10)
    with room(alone=True, lock=lock):
        waiting = begins(alone=False)
        assert not waiting.wait(0.1)
    assert waiting.wait(10)
