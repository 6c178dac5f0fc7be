"""What users may rely on stays: docs/versions.md says what that is, public_names.json has it name by name."""

from __future__ import annotations

import json

import pytest
from support.public_names import HELD, Names, broken, public_names


def python(*parameters: str) -> Names:
    return {"python": {"stash": list(parameters)}}


def test_everything_that_is_held_is_still_there() -> None:
    held = json.loads(HELD.read_text("utf-8"))
    assert held.keys() == public_names().keys()
    assert all(held.values())
    problems = broken(held, public_names())
    assert problems == [], "see docs/versions.md; `.venv/bin/python tests/support/public_names.py` holds new names"


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        (python("connection"), "stash: it no longer takes topic"),
        (python("records", "connection", "*", "topic="), "stash: its parameter 1 is no longer connection"),
        (python("connection", "lane", "*", "topic="), "stash: it needs lane, which is new"),
        (python("connection", "*", "topic"), "stash: it needs topic, which was optional"),
        ({"python": {}}, "python: stash is gone"),
        (
            {"python": {"stash": ["connection", "*", "topic="], "take": []}},
            "python: take is public now, and not held yet",
        ),
    ],
)
def test_a_call_that_no_longer_works_is_named(now: Names, problem: str) -> None:
    assert problem in broken(python("connection", "*", "topic="), now)


@pytest.mark.parametrize(
    "now",
    [
        python("connection", "*", "topic="),
        python("connection", "lane=", "*", "topic="),
        python("connection", "*", "topic=", "lane="),
        python("connection", "topic="),
        python("connection=", "*", "topic=", "**more"),
    ],
)
def test_a_call_may_grow(now: Names) -> None:
    assert broken(python("connection", "*", "topic="), now) == []


def test_an_option_a_field_and_a_command_may_be_added_and_not_taken_away() -> None:
    nothing: Names = {"python": {}}
    held = nothing | {"commands": {"status": ["--output"]}}
    assert broken(held, nothing | {"commands": {"status": ["--output", "--watch"], "check": []}}) == []
    assert broken(held, nothing | {"commands": {"status": ["--watch"]}}) == ["commands: status lacks --output"]
    assert broken(held, nothing | {"commands": {}}) == ["commands: status is gone"]
