"""Waiting for a ticket with a listener of this process."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from support.harvesting import PATIENCE
from support.leading import NAME

from airflow_outbox import Ticket
from airflow_outbox.tickets.listener import Listener
from airflow_outbox.tickets.published import TicketStatus


async def wait(listening: Listener, ticket: Ticket, found: list[TicketStatus] | None = None) -> TicketStatus:
    status = None
    async with aclosing(listening.statuses(NAME, ticket)) as statuses:
        async for status in statuses:
            if found is not None:
                found.append(status)
    assert status is not None
    return status


async def attended(listening: Listener) -> None:
    """Wait until it listens on a connection, and all who wait have been told something."""
    async with asyncio.timeout(PATIENCE):
        while not listening._listening or any(each.has_new() for each in listening._attended.values()):
            await asyncio.sleep(0.05)
