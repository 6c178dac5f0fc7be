"""How soon a listener hears what it waits for, on a real Postgres."""

from __future__ import annotations

import asyncio
import time
from statistics import median

import pytest
from integration.listening import attended, wait
from support.harvesting import PATIENCE
from support.leading import Leader

from airflow_outbox.tickets.listener import Listener
from airflow_outbox.tickets.published import TicketState, TicketStatus

pytestmark = pytest.mark.timed


async def test_an_announcement_is_heard_within_milliseconds(database: str, leader: Leader) -> None:
    listening = Listener(database)
    delays: list[float] = []
    for _ in range(5):
        ticket = leader.stash()
        found: list[TicketStatus] = []
        waiting = asyncio.create_task(wait(listening, ticket, found))
        await attended(listening)
        async with asyncio.timeout(PATIENCE):
            while not found:
                await asyncio.sleep(0.05)
        assert {status.state for status in found} == {TicketState.WAITING}
        begun = time.monotonic()
        leader.purge()
        async with asyncio.timeout(PATIENCE):
            status = await waiting
        delays.append(time.monotonic() - begun)
        assert status == TicketStatus(ticket, TicketState.PUBLISHED, 0, clusters=("primary",))
    assert median(delays) < 0.25, delays  # one that looks once a second needs twice as long on average


async def test_where_no_announcement_comes_it_looks_once_a_second(database: str, leader: Leader) -> None:
    """As behind a pooler that swallows them: here nobody announces."""
    listening = Listener(database)
    delays: list[float] = []
    for _ in range(3):
        waiting = asyncio.create_task(wait(listening, leader.stash()))
        await attended(listening)
        text = str(leader.watermark())
        leader.connection.execute("UPDATE outbox_shard SET watermark = %s", [text])
        begun = time.monotonic()
        await waiting
        delays.append(time.monotonic() - begun)
    assert median(delays) < 1.5, delays
