"""Which of an outbox's shards a member notes in the history, and how fast it says that each publishes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support.harvesting import PATIENCE

from airflow_outbox.harvest import health_history
from airflow_outbox.harvest.health_history import HistoryKeeper
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.postgres_table import member_name
from airflow_outbox.values.health_history import ShardNote
from airflow_outbox.values.verdict import Facts, State, Thresholds

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ME, OTHER = member_name(), "b:2"


def four(members: tuple[str | None, ...], *, at: float = 0, published: int = 0) -> Facts:
    """Four shards with these leaders, some seconds later."""
    now = NOW + timedelta(seconds=at)
    one = Facts(now=now, heard_at=now, took_over_at=NOW, rate=7.0)
    return Facts.of(
        [replace(one, shard=shard, member=member, published=published * shard) for shard, member in enumerate(members)]
    )


async def noted(monkeypatch: pytest.MonkeyPatch, *looks: Facts) -> list[list[ShardNote]]:
    """The notes of a member that sees this, one look after the other."""
    found: list[list[ShardNote]] = []
    left = [*looks]

    async def look(*, oldest: float) -> Any:
        return SimpleNamespace(facts=left.pop(0) if left else None)

    def note(_connection: Any, _name: Any, notes: list[ShardNote]) -> float:
        found.append(notes)
        return 0.0

    monkeypatch.setattr(health_history, "_LOOK_INTERVAL", 0.0)
    monkeypatch.setattr(health_history, "note_history", note)
    keeper = HistoryKeeper(
        opened=lambda _: SimpleNamespace(connection=None, name=None, close=lambda: None, hang_up=lambda: None),  # type: ignore[arg-type,return-value]
        leads=lambda: True,
        monitor=SimpleNamespace(look=look),  # type: ignore[arg-type]
        measures=Measures(asyncio.get_running_loop().time),
        thresholds=Thresholds(),
        complain=pytest.fail,
    )
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(PATIENCE):
        while left or len(found) < len([each for each in looks if ME in [shard.member for shard in each.each]]):
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    keeper.close()
    return found


def told(notes: list[ShardNote]) -> list[tuple[int, State, float]]:
    return [(note.shard, note.state, note.rate) for note in notes]


async def test_a_member_notes_its_shards_and_the_first_ones_leader_those_that_nobody_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [notes] = await noted(monkeypatch, four((OTHER, ME, None, ME)))
    assert told(notes) == [(1, State.HEALTHY, 7.0), (3, State.HEALTHY, 7.0)]
    [notes] = await noted(monkeypatch, four((ME, OTHER, None, OTHER)))
    assert told(notes) == [(0, State.HEALTHY, 7.0), (2, State.NO_LEADER, 0.0)]
    assert [note.member for note in notes] == [ME, None]


async def test_a_shards_rate_is_that_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    _, notes = await noted(monkeypatch, four((ME,) * 4, published=10), four((ME,) * 4, at=5, published=60))
    assert told(notes) == [(shard, State.HEALTHY, 10.0 * shard) for shard in range(4)]
