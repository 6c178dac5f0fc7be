"""A member leaves the group for a while, so that another one leads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from airflow_outbox.harvest.ports import Election, Events


class Absence:
    """A member's time outside the group, in which others lead. It is the same for all of its shards."""

    def __init__(self, election: Election, events: Events) -> None:
        self._election = election
        self._events = events
        self._returning: asyncio.Task[None] | None = None

    @property
    def is_on(self) -> bool:
        return self._returning is not None and not self._returning.done()

    def begin(self, reason: str, coming_back: Callable[[], Awaitable[None]]) -> None:
        """Leave the group until `coming_back` has ended, unless it was left before."""
        if self.is_on:
            return
        self._events("resigned", reason=reason)
        self._election.resign(reason)
        self._returning = asyncio.create_task(self._return(coming_back))

    async def end(self) -> None:
        """Wait for nothing any more."""
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.gather(self._returning, return_exceptions=True)

    async def _return(self, coming_back: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(TimeoutError):
            await coming_back()
        self._events("rejoined")
        self._election.rejoin()
