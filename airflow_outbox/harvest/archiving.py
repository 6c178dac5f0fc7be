"""The leader tends the archive: once an hour it makes partitions for the days ahead, and drops old ones.

This needs no fence: it changes only records older than the retention. A failure is reported and stops nothing: purging
does without it for days.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.connection import connect

_INTERVAL = 3600.0
_RETRY_INTERVAL = 10.0
_LOOK_INTERVAL = 1.0


async def tend_archive(config: HarvestConfig, *, leads: Callable[[], bool], complain: Callable[[str], None]) -> None:
    """Tend the archive, if the configuration has one, as soon as this member leads and every hour while it does."""
    loop = asyncio.get_running_loop()
    due_at = loop.time()
    while config.archives:
        if leads() and loop.time() >= due_at:
            try:
                await asyncio.to_thread(_tend, config)
                due_at = loop.time() + _INTERVAL
            except OutboxError as error:
                complain(f"the archive: {error}")
                due_at = loop.time() + _RETRY_INTERVAL
        await asyncio.sleep(_LOOK_INTERVAL)


def _tend(config: HarvestConfig) -> None:
    with closing(connect(config.data_source, purpose="archive")) as connection:
        archive = Archive(connection, config.name)
        archive.tend(now=archive.now(), retention=config.archive_retention)
