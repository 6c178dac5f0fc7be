"""Tends the archives of a list's outboxes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import psycopg

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.many.connection_pool import ConnectionPool
from airflow_outbox.harvest.many.finder import Complain
from airflow_outbox.harvest.many.managed_outbox import ManagedOutbox
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.names import OutboxName

_INTERVAL = 3600.0
_PATIENCE = 60.0


async def tend_archives(
    outboxes: Iterable[ManagedOutbox],
    shared: ConnectionPool,
    retention: float,
    *,
    complain: Complain,
    now: Callable[[], float],
) -> None:
    """Make the partitions for the days ahead, and drop those older than `retention` seconds, once an hour each."""
    for outbox in outboxes:
        if now() - outbox.tended_at < _INTERVAL:
            continue
        try:
            await shared.call(partial(_tend, outbox.name, retention), patience=_PATIENCE)
            outbox.tended_at = now()
        except OutboxError as error:
            complain(str(outbox.name), f"the archive: {error}")


def _tend(name: OutboxName, retention: float, connection: psycopg.Connection[Any]) -> None:
    archive = Archive(connection, name)
    archive.tend(now=archive.now(), retention=retention)
