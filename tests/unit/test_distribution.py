"""Tests that run at the same time: each belongs to one part, and no name in `distribution` is of the past."""

from __future__ import annotations

from pathlib import Path

import pytest
from distribution import DIVIDED, LONGEST_FIRST, TOGETHER, part_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("nodeid", "part"),
    [
        ("tests/unit/test_names.py::test_one[a/b]", "tests/unit/test_names.py"),
        ("tests/integration/spark/test_batch.py::test_one", "tests/integration/spark/"),
        ("tests/simulation/test_planted.py::test_one[a::b]", "tests/simulation/test_planted.py::test_one[a::b]"),
    ],
)
def test_a_test_belongs_to_a_part(nodeid: str, part: str) -> None:
    assert part_of(nodeid) == part


@pytest.mark.parametrize("place", [*DIVIDED, *LONGEST_FIRST, *TOGETHER])
def test_every_place_that_is_named_has_tests(place: str) -> None:
    assert (ROOT / place).is_file() or any((ROOT / place).glob("test_*.py"))
