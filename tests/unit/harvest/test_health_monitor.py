"""A member's looks at the outbox, over a Postgres that answers, refuses or says nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support.harvesting import PATIENCE

from airflow_outbox.errors import PostgresUnreachableError
from airflow_outbox.harvest import health_monitor
from airflow_outbox.harvest.health_monitor import HealthMonitor
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.values.verdict import Backlog, Facts, State, Thresholds

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
WELL = Facts(now=NOW, member="a:1", heard_at=NOW, took_over_at=NOW, published_at=NOW)


class Watched:
    """A monitor, and what Postgres answers it: facts, an error, or whatever a function does."""

    def __init__(self) -> None:
        self.answer: Facts | Exception | Callable[[], Facts] = WELL
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.opened = self.read = self.failed = 0
        self.measures = Measures(time.monotonic)
        self.monitor = HealthMonitor(
            opened=self._open,
            thresholds=Thresholds(),
            measures=self.measures,
            events=lambda event, **fields: self.events.append((event, fields)),
        )

    def _open(self, purpose: str) -> Any:
        assert purpose == "observe"
        self.opened += 1
        return SimpleNamespace(connection=None, name=None, close=lambda: None, hang_up=lambda: None)

    def facts(self, *_: Any) -> Facts:
        self.read += 1
        if isinstance(self.answer, Exception):
            self.failed += 1
            raise self.answer
        return self.answer if isinstance(self.answer, Facts) else self.answer()

    def told(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]

    async def follows(self, answer: Facts | Exception) -> None:
        """Let the monitor see this, and report it."""
        self.answer, before = answer, len(self.told("measured"))
        while len(self.told("measured")) < before + 2:  # the first may be of the answer before
            await asyncio.sleep(0.005)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Watched:
    scene = Watched()
    monkeypatch.setattr(health_monitor, "read_facts", scene.facts)
    monkeypatch.setattr(health_monitor, "_INTERVAL", 0.01)
    monkeypatch.setattr(health_monitor, "_LONGEST_INTERVAL", 0.01)
    monkeypatch.setattr(health_monitor, "_FRESH", 0.0)
    monkeypatch.setattr(health_monitor, "LONGEST_LOOK", PATIENCE)
    return scene


async def test_a_verdict_is_told_when_it_is_news(scene: Watched) -> None:
    running = asyncio.create_task(scene.monitor.run())
    for waits in (0, 5, 9):
        await scene.follows(replace(WELL, backlog=Backlog(waits, oldest_age=1.0)))
    silent = replace(WELL, heard_at=NOW - timedelta(seconds=60))
    await scene.follows(silent)
    await scene.follows(replace(silent, now=NOW + timedelta(seconds=5)))
    await scene.follows(PostgresUnreachableError("can't connect. Start it"))
    await scene.follows(WELL)
    running.cancel()
    assert [verdict["state"] for verdict in scene.told("verdict")] == ["healthy", "no_leader", "unknown", "healthy"]
    assert scene.told("verdict")[1] == {
        "state": "no_leader",
        "cause": "nobody leads: a:1 was last heard from 60.0 s ago",
        "since": "2026-11-23T11:59:00+00:00",
        "remedy": "Look at that process, or start another harvester",
        "notes": (),
    }
    assert scene.opened == 1 + scene.failed, "a connection that has failed is not used again"


async def test_each_look_reports_the_metrics_and_the_present_verdict(scene: Watched) -> None:
    running = asyncio.create_task(scene.monitor.run())
    scene.measures.elected()
    await scene.follows(replace(WELL, backlog=Backlog(5, oldest_age=1.0)))
    running.cancel()
    newest = scene.told("measured")[-1]
    assert newest["metrics"].items() >= {"backlog": 5, "elections": 1}.items()
    assert newest["metrics"]["verdict"]["healthy"] == 1
    assert "published" not in newest["metrics"], "progress tells that"
    assert newest["verdict"]["cause"] == "a:1 leads, and 5 records are on their way"


async def test_all_who_ask_share_a_look(scene: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_monitor, "_FRESH", 60.0)
    looks = await asyncio.gather(*(scene.monitor.look() for _ in range(20)))
    assert len({id(look) for look in looks}) == scene.read == scene.opened == 1
    monkeypatch.setattr(health_monitor, "_FRESH", 0.0)
    await scene.monitor.look()
    assert (scene.read, scene.opened) == (2, 1)


async def test_a_postgres_that_says_nothing_is_given_up_and_tried_again(
    scene: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_monitor, "LONGEST_LOOK", 0.1)
    answered = threading.Event()

    def silent() -> Facts:
        answered.wait(PATIENCE)
        return WELL

    scene.answer = silent
    look = await scene.monitor.look()
    assert (look.verdict.state, look.facts) == (State.UNKNOWN, None)
    assert "has not answered for 0.1 s" in look.verdict.cause
    scene.answer = WELL
    async with asyncio.timeout(PATIENCE):  # a busy machine may need more than 0.1 s now and then
        while (await scene.monitor.look()).verdict.state is not State.HEALTHY:
            pass
    answered.set()
    await scene.monitor.close()


async def test_looks_that_take_long_are_seldom(scene: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_monitor, "_LONGEST_INTERVAL", 60.0)

    def slow() -> Facts:
        time.sleep(0.05)
        return WELL

    scene.answer = slow
    running = asyncio.create_task(scene.monitor.run())
    async with asyncio.timeout(PATIENCE):
        while not scene.read:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    running.cancel()
    assert scene.read == 1
