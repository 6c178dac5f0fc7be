"""A member through all layouts: one harvester after the other, each assembled for as many shards as there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.harvest.harvester import Harvester
from airflow_outbox.harvest.layout_change import NO_VIEWS
from airflow_outbox.harvest.ports import Events, Table

_RETRY_INTERVAL = 0.5


class Assembled(Protocol):
    """A harvester for the layout `number`, which may run; `table` is that of its first shard."""

    @property
    def harvester(self) -> Harvester: ...

    @property
    def table(self) -> Table: ...

    @property
    def number(self) -> int: ...

    def leads(self) -> bool:
        """Whether it leads the first shard now."""

    async def close(self) -> None:
        """Leave the group, when the harvester has ended by itself."""


class Member:
    """Runs until stopped. `assemble` finds the present layout, and makes a harvester for it."""

    def __init__(self, first: Assembled, *, assemble: Callable[[], Awaitable[Assembled]], events: Events) -> None:
        self._assembly = first
        self._assemble = assemble
        self._events = events
        self._stopping = asyncio.Event()

    @property
    def table(self) -> Table:
        """The present table of the first shard."""
        return self._assembly.table

    @property
    def published(self) -> int:
        """Records published and purged by this member."""
        return self._assembly.harvester.published

    def leads(self) -> bool:
        """Whether this member leads the first shard now, and so cares for what all shards have in common."""
        return self._assembly.leads()

    def heard_of(self, layout: int) -> None:
        """The outbox is in this layout."""
        if layout > self._assembly.number:
            self._assembly.harvester.layout_changed.set()

    async def run(self) -> None:
        """Harvest until `stop`. Raises ConfigurationError when the configuration allows no harvest in a new layout."""
        views = NO_VIEWS
        while True:
            harvester = self._assembly.harvester
            await harvester.run(views)
            if self._stopping.is_set() or not harvester.layout_changed.is_set():
                return
            # It leaves its old group while it prepares to join another, which it does only after that.
            closing = asyncio.create_task(self._assembly.close())
            try:
                assembly = await self._next()
            finally:
                await closing
            if assembly is None:
                return
            if self._stopping.is_set():  # since it prepared
                return await assembly.close()
            self._assembly, views = assembly, harvester.layout_changed.views

    async def stop(self, grace: float) -> None:
        """Finish the records in flight, for at most `grace` seconds, leave the group, and end `run`."""
        self._stopping.set()
        await self._assembly.harvester.stop(grace)

    async def _next(self) -> Assembled | None:
        while not self._stopping.is_set():
            try:
                assembly = await self._assemble()
            except ConfigurationError:
                raise
            except OutboxError as error:
                self._events("error", error=str(error), retry_in=_RETRY_INTERVAL)
                await asyncio.sleep(_RETRY_INTERVAL)
                continue
            return assembly
        return None
