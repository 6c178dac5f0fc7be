"""A harvester that is slow to learn that another leads: `python unaware.py`. It is the child process otherwise.

It hears nothing of it from the election, neither watches the fence row nor tells it anything while it harvests, and
after SIGUSR1 it purges only after a while. So what it sends after it was replaced is up to the checks that a promise
rests on, and not to luck.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from airflow_outbox.harvest.__main__ import main
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.harvest.protocol.election import Candidate
from airflow_outbox.harvest.term import Term

SLOW = 8.0
"""Seconds."""
_NAP = 0.1
COMMAND = [sys.executable, __file__]


def be_unaware() -> None:
    def hear_nothing(*_: Any, **__: Any) -> None:
        return None

    async def look_away(self: Term) -> None:
        await self._finished.wait()

    purge = PostgresTable.purge_published
    slow = asyncio.Event()
    signal.signal(signal.SIGUSR1, lambda *_: slow.set())

    async def purge_late(*arguments: Any, **named: Any) -> Any:
        for _ in range(
            int(SLOW / _NAP) if slow.is_set() else 0
        ):  # in naps, for the time in which the process is stopped must not count
            await asyncio.sleep(_NAP)
        return await purge(*arguments, **named)

    PostgresTable.purge_published = purge_late  # type: ignore[method-assign]
    Candidate.passed = hear_nothing  # type: ignore[method-assign]
    Candidate.revoked = hear_nothing  # type: ignore[method-assign]
    Term._watch = look_away  # type: ignore[method-assign]
    Term._account = look_away  # type: ignore[method-assign]


if __name__ == "__main__":
    be_unaware()
    main()
