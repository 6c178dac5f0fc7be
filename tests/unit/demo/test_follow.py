"""How long the demo waits for Airflow, by a clock and servers that each test moves on itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_outbox.demo import follow
from airflow_outbox.demo.follow import HARVEST_DAG, STALL_SECONDS, DemoError, Follower

SLOW = STALL_SECONDS * 0.7
"""What one look takes on a machine that is very busy."""


class SlowMachine:
    """Airflow, Postgres and Kafka where a look takes `SLOW` seconds. `states` are those of each Dag's one task, look by
    look; `of_harvest` are those of the harvest, if they differ.
    """

    def __init__(self, states: list[str], *, of_harvest: list[str] | None = None) -> None:
        self._states = states
        self._of_harvest = of_harvest or states
        self._looks = 0
        self.now = 1000.0
        self.delivered: list[Any] = []

    def read(self, seconds: float) -> None:
        self._looks += 1
        self.now += SLOW

    def read_to_end(self) -> None:
        pass

    def runs(self, dag: str) -> list[dict[str, Any]]:
        return [{"dag_run_id": "one"}]

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        states = self._of_harvest if dag == HARVEST_DAG else self._states
        return [{"task_id": "all", "try_number": 1, "state": states[min(self._looks, len(states) - 1)]}]

    def task_log(self, *task: str, try_number: int) -> str:
        return "still importing"

    def execute(self, query: str) -> Any:
        return SimpleNamespace(fetchall=lambda: [(0, 0)], fetchone=lambda: None)

    def update(self, progression: object) -> None:
        pass

    def say(self, line: str) -> None:
        pass


def follower_of(machine: SlowMachine, monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: machine.now))
    servers: Any = machine
    return Follower(api=servers, connection=servers, reader=servers, display=servers)


def test_a_task_that_goes_on_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(["scheduled", "queued", "running", "success"])
    follower_of(machine, monkeypatch).until_all_has_arrived()


def test_nothing_that_goes_on_ends_the_demo_with_the_tasks_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(["scheduled", "queued", "running"])
    with pytest.raises(DemoError, match=r"(?s)no progress for 600 s.*is running.*still importing"):
        follower_of(machine, monkeypatch).until_all_has_arrived()


def test_a_harvest_that_fails_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(
        ["running", "running", "running", "success"], of_harvest=["running", "up_for_retry", "deferred"]
    )
    follower_of(machine, monkeypatch).until_all_has_arrived()


def test_any_other_task_that_fails_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowMachine(["running", "running", "failed"], of_harvest=["running"])
    with pytest.raises(DemoError, match=r"(?s)\Atask flights_published\.all is failed.*still importing"):
        follower_of(machine, monkeypatch).until_all_has_arrived()
