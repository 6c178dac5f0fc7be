"""The stopwatch follows the page: it pastes what the page has, and all of it."""

from __future__ import annotations

from types import ModuleType

import pytest
from support.scripts import script_of_ci


@pytest.fixture(scope="module")
def stopwatch() -> ModuleType:
    return script_of_ci("stopwatch")


def test_every_step_of_the_page_is_timed(stopwatch: ModuleType) -> None:
    page = stopwatch.PAGE.read_text("utf-8")
    steps = list(stopwatch.steps(page))
    assert [step.heading[:2] for step in steps] == ["3.", "4.", "5.", "6.", "7."]
    assert [name for step in steps for name in step.files] == ["outbox.yaml", "topic.py", "order.py", "read.py"]
    assert "PGPASSWORD=app" in stopwatch.terminal(page)
    assert steps[-1].told.startswith("orders b'17'")


def test_another_beginning_of_the_page_is_noticed(stopwatch: ModuleType) -> None:
    with pytest.raises(stopwatch.FailedError, match=r"does not begin with \./dev servers"):
        stopwatch.terminal("```sh\n./dev demo\n```\n")


def test_nothing_that_this_machine_keeps_is_found(
    stopwatch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/some/wheels")
    monkeypatch.setenv("PATH", f"{stopwatch.ROOT}/.venv/bin:/usr/bin")
    environment = stopwatch.bare(tmp_path)
    assert (environment["HOME"], environment["PATH"]) == (str(tmp_path), "/usr/bin")
    assert not {"PIP_FIND_LINKS", "VIRTUAL_ENV"} & environment.keys()
