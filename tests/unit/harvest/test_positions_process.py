"""The task that has positions replicated beside a harvest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from airflow_outbox.cli import positions as cli
from airflow_outbox.harvest import positions_process
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.positions_process import replicate_positions
from airflow_outbox.harvest.positions_telling import PositionsTeller


class Teller:
    """What is told to Postgres, elsewhere."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def over(self) -> None:
        self.told.append("over")

    def seen(self, **fields: Any) -> None:
        self.told.append(fields)

    def failed(self, problem: str) -> None:
        self.told.append(problem)


CONFIG = HarvestConfig.validated(
    {
        "data_source": "host=h",
        "clusters": {"primary": {"bootstrap.servers": "a"}, "west": {"bootstrap.servers": "b"}},
        "positions": {"enabled": True, "groups": ["*"]},
    },
    source="config",
)


async def test_a_process_that_can_not_be_started_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[str] = []
    enough = asyncio.Event()

    async def start(*_: Any, **__: Any) -> Any:
        raise OSError("cannot allocate memory")

    def complain(text: str) -> None:
        complaints.append(text)
        if len(complaints) == 2:
            enough.set()

    monkeypatch.setattr(positions_process.HarvestChild, "start", start)
    monkeypatch.setattr(positions_process, "_RETRY_INTERVAL", 0.0)
    monkeypatch.setattr(positions_process, "_LOOK_INTERVAL", 0.0)
    teller = Teller()
    task = asyncio.create_task(
        replicate_positions(
            CONFIG,
            leads=lambda: True,
            events=lambda *_, **__: None,
            complain=complain,
            teller=cast(PositionsTeller, teller),
        )
    )
    await asyncio.wait({task, asyncio.create_task(enough.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not task.done()
    task.cancel()
    assert "cannot allocate memory" in complaints[1]
    await asyncio.gather(task, return_exceptions=True)
    assert teller.told[:2] == complaints[:2]
    assert teller.told[-1] == "over"


class Child:
    """A replicator that tells two things and ends."""

    status = -11

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        yield {"event": "positions", "time": "now", "groups": 1}
        yield {"event": "positions_seen", "time": "now", "report": {"failures": 0}, "shown": []}

    async def end(self) -> None:
        pass


async def test_what_the_process_sees_is_told_and_that_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*_: Any, **__: Any) -> Any:
        return Child()

    monkeypatch.setattr(positions_process.HarvestChild, "start", start)
    teller, events, complaints = Teller(), list[str](), asyncio.Queue[str]()
    task = asyncio.create_task(
        replicate_positions(
            CONFIG,
            leads=lambda: True,
            events=lambda event, **_: events.append(event),
            complain=complaints.put_nowait,
            teller=cast(PositionsTeller, teller),
        )
    )
    complaint = await complaints.get()
    assert "has ended with status -11" in complaint
    assert events == ["positions"]
    assert teller.told == [{"report": {"failures": 0}, "shown": []}, complaint]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_command_that_replicates_ends_with_the_error_that_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "replicate_positions", failing)
    with pytest.raises(RuntimeError, match="a bug"):
        await cli._run(CONFIG)
