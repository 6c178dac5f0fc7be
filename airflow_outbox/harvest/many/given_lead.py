"""The port `Election` of one outbox of a list. The list has been elected already: its leader gives the lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from airflow_outbox.harvest.leadership import SHARD
from airflow_outbox.harvest.protocol.election import Change, Lead, Standing


class GivenLead:
    """Leads from the beginning, and until it is closed.

    `over` is why the member leads no more by itself (None: it does): the fence names another view, or the member has
    resigned. It does not come back: whoever gave it the lead decides what is next.
    """

    def __init__(self) -> None:
        self.over: str | None = None
        self.was_fenced = False
        self._standing = Standing.LEADER
        self._changes: asyncio.Queue[Change | None] = asyncio.Queue()
        self._changes.put_nowait(Lead())

    def standing(self, shard: int) -> Standing:
        return self._standing

    async def changes(self) -> AsyncIterator[tuple[int, Change]]:
        while (change := await self._changes.get()) is not None:
            yield SHARD, change

    def released(self, shard: int) -> None:
        """Nobody waits for it."""

    def fenced(self, shard: int) -> None:
        self._standing = Standing.FENCED
        self.over, self.was_fenced = "another member has taken it over", True

    def resign(self, reason: str) -> None:
        self._standing = Standing.STANDBY
        self.over = reason

    def rejoin(self) -> None:
        """It is given the lead again, or not."""

    async def close(self) -> None:
        self._standing = Standing.STANDBY
        self._changes.put_nowait(None)
