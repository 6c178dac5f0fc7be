"""Resharding: the leader of the first shard gives the outbox another number of shards.

1. It takes over every shard, so that no older view's statement can change anything, and completes what is committed
   there (`harvest.recovery`), so that no older producer can commit anything.
2. It writes the layout: which slots each shard has from now on. Every shard gets a fresh view, so that its own views of
   step 1, and whatever else was decided in the old layout, count no more.

Nothing is published meanwhile. The watermarks of the new layout begin where all those of the old one had got to:
nothing that was called published is taken back. A failure at any step changes no layout: whoever leads the first shard
then does it all again. While it lasts, nobody else takes over the other shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from uuid import UUID, uuid4

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.on_each_shard import on_each_shard, opened_table
from airflow_outbox.harvest.ports import Events, Table, TransactionalLogFactory
from airflow_outbox.harvest.protocol.recovery import require_history
from airflow_outbox.harvest.recovery import completed


class Resharding:
    """Reshards an outbox of `shards` shards. `new_table` opens a shard's table, `new_logs` its logs by cluster."""

    def __init__(
        self,
        *,
        shards: int,
        new_table: Callable[[int], Table],
        new_logs: Callable[[int], Mapping[str, TransactionalLogFactory]],
        limits: Limits,
        measures: Measures,
        events: Events,
        new_view: Callable[[], UUID] = uuid4,
    ) -> None:
        self._shards = shards
        self._new_table = new_table
        self._new_logs = new_logs
        self._limits = limits
        self._measures = measures
        self._events = events
        self._new_view = new_view

    async def __call__(self, shards: int, *, view: UUID, after: Collection[UUID]) -> Mapping[int, UUID]:
        """The outbox gets this many shards. The caller leads the first one, under a view of `after`; `view` follows it.

        Returns the fresh view of each new shard. Raises FencedError, HistoryError, KafkaError, PostgresError.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        views = {0: view} | {number: self._new_view() for number in range(1, self._shards)}
        async with opened_table(self._new_table, 0) as first:
            await self._complete(first, 0, view, after)  # first: it tells whether this member still leads
            await on_each_shard(range(1, self._shards), lambda number: self._take(number, views[number]))
            fresh = await first.write_layout(views, shards)
        self._events("resharded", before=self._shards, shards=shards, seconds=round(loop.time() - began, 3))
        return fresh

    async def _take(self, number: int, view: UUID) -> None:
        async with opened_table(self._new_table, number) as table:
            await self._complete(table, number, view, ())

    async def _complete(self, table: Table, number: int, view: UUID, after: Collection[UUID]) -> None:
        """Take over a shard, and complete what is committed there."""
        fence = await table.take_over(view, after=after)
        require_history(fence)
        if fence.owed:  # what it is owed is kept by shard
            raise ConfigurationError(
                f"cluster {' and '.join(fence.owed)} does not count, and lacks what was published in this layout. "
                "Attach it first, or withdraw the request: `airflow-outbox reshard --withdraw`"
            )
        async with completed(
            self._new_logs(number), view=view, fence=fence, table=table, limits=self._limits, measures=self._measures
        ):
            pass  # nothing else is to be done with its logs
