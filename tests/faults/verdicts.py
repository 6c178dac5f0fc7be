"""What the verdict is, and how soon."""

from __future__ import annotations

import time
from collections.abc import Callable

from faults.scene import Scene
from support.harvesting import SHORT_SESSION, Process

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.values.verdict import State, Verdict

A_HEARTBEAT = 1.0
"""Seconds between two heartbeats in Postgres."""


def expire_soon(scene: Scene) -> float:
    """Let sessions be short; after how many seconds a leader that is silent is one no more."""
    scene.limits = scene.outbox.settings["limits"] = SHORT_SESSION
    return SHORT_SESSION["session_timeout"] + A_HEARTBEAT


def look(scene: Scene) -> Verdict:
    return read_verdict(HarvestConfig.validated(scene.outbox.settings, source="test"))


def becomes(scene: Scene, state: State, *, says: str = "") -> Verdict:
    """Wait for this verdict."""
    found: list[Verdict] = []

    def is_so() -> bool:
        found[:] = [look(scene)]
        return found[0].state is state and says in found[0].cause

    scene.wait_until(is_so)
    return found[0]


def healthy(scene: Scene) -> None:
    becomes(scene, State.HEALTHY)


def tells(scene: Scene, member: Process, state: State, *, after: int) -> None:
    """Wait for the member's event of this verdict, after so many events."""
    scene.next_event(member, "verdict", since=after, state=state)


def seconds(wait: Callable[[], object]) -> float:
    """How long a wait takes."""
    began = time.monotonic()
    wait()
    return time.monotonic() - began
