"""Durable first: a batch is committed to Kafka only when its records are on Postgres' disk.

A record may be visible before its commit is on disk (`synchronous_commit=off`). A crash would undo it, and it must not
be in Kafka then.
"""

from __future__ import annotations

import asyncio

from airflow_outbox.harvest.ports import Table

_LOOKS_FOR_DISK = 2
_LONGEST_LOOK = 0.003  # seconds


class WalFlush:
    """How far Postgres' log is known to be on disk. Records are looked for every `poll_interval` seconds."""

    def __init__(self, table: Table, *, poll_interval: float) -> None:
        self._table = table
        self._wait = min(poll_interval, _LONGEST_LOOK)
        self._position = 0

    def seen(self, position: int) -> None:
        """The log is on disk up to a position: a statement's result has told."""
        self._position = max(self._position, position)

    async def require(self, position: int) -> None:
        """Wait until Postgres' log is on disk up to there. Raises PostgresError.

        Usually another commit has just brought it there, and the next look for records tells. Asking would wait behind
        a purge.
        """
        for _ in range(_LOOKS_FOR_DISK):
            if self._position >= position:
                return
            await asyncio.sleep(self._wait)
        if self._position < position:
            self._position = await self._table.flush(position)
