"""Do the same for several shards at a time: to take each of them over takes mostly waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from airflow_outbox.harvest.ports import Table

Result = TypeVar("Result")

_AT_A_TIME = 8  # each has a connection, and producers on each cluster


async def on_each_shard(shards: Iterable[int], work: Callable[[int], Awaitable[Result]]) -> dict[int, Result]:
    """Work on each of these shards, and return the results. Raises the first error, when no work goes on any more."""
    limit = asyncio.Semaphore(_AT_A_TIME)

    async def limited(shard: int) -> Result:
        async with limit:
            return await work(shard)

    tasks = {shard: asyncio.create_task(limited(shard)) for shard in shards}
    try:
        await asyncio.gather(*tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    return {shard: task.result() for shard, task in tasks.items()}


@asynccontextmanager
async def opened_table(new_table: Callable[[int], Table], shard: int) -> AsyncIterator[Table]:
    """Open a shard's table, and close it again."""
    table = new_table(shard)
    try:
        yield table
    finally:
        await table.close()
