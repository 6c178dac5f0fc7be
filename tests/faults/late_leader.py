"""A leader on several clusters that learns late that it leads no more: `python late_leader.py`.

It is the child process otherwise. Once after SIGUSR1 it stands still (SIGSTOP) between its commits of a batch on the
primary and on a backup, when it has also sent the next batch to all clusters. From then on it asks Postgres nothing,
and hears nothing of the election or of promotions, until it has committed that next batch on the primary, too. So how
much it commits is not up to which of its threads comes first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from airflow_outbox.harvest.__main__ import main
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.member import Member
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.commitment import PRIMARY
from airflow_outbox.harvest.protocol.election import Candidate

COMMAND = [sys.executable, __file__]
_LOOK_INTERVAL = 0.01
_ASKING = ("read", "purge_published", "heartbeat", "require_fence")
"""The statements of a term by which it may learn that it is over."""
_HEARING = ((Candidate, "passed"), (Candidate, "revoked"), (Member, "heard_of"))

Call = Callable[..., Coroutine[Any, Any, Any]]


class Asking:
    """The calls that ask Postgres: how many are under way, and whether more may begin."""

    def __init__(self) -> None:
        self.under_way = 0
        self.may_begin = asyncio.Event()
        self.may_begin.set()

    def held(self, call: Call) -> Call:
        """Make a call wait until it may begin."""

        async def asked(*arguments: Any, **named: Any) -> Any:
            await self.may_begin.wait()
            self.under_way += 1
            try:
                return await call(*arguments, **named)
            finally:
                self.under_way -= 1

        return asked

    async def ends(self) -> None:
        """Let none begin, and wait for those under way: a freeze would be too long for them."""
        self.may_begin.clear()
        await until(lambda: self.under_way == 0)

    def unheard(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Leave a call out while none may begin."""
        return lambda *arguments, **named: call(*arguments, **named) if self.may_begin.is_set() else None


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(_LOOK_INTERVAL)


def learn_late() -> None:
    commit_on, take_over = ExactlyOnceTerm._commit_on, PostgresTable.take_over
    asking, is_armed, has_stood = Asking(), asyncio.Event(), asyncio.Event()
    signal.signal(signal.SIGUSR1, lambda *_: is_armed.set())

    async def commit(term: ExactlyOnceTerm, log: int, batch: Batch) -> None:
        if log != PRIMARY and is_armed.is_set() and not has_stood.is_set():
            has_stood.set()
            await until(lambda: all(each.prepared > batch.number for each in term._commitment._logs))
            await asking.ends()
            os.kill(os.getpid(), signal.SIGSTOP)
        await commit_on(term, log, batch)
        if log == PRIMARY:
            asking.may_begin.set()

    async def begin(*arguments: Any, **named: Any) -> Any:
        asking.may_begin.set()  # the term has failed, and it leads again
        return await take_over(*arguments, **named)

    ExactlyOnceTerm._commit_on = commit  # type: ignore[method-assign]
    PostgresTable.take_over = begin  # type: ignore[method-assign]
    for method in _ASKING:
        setattr(PostgresTable, method, asking.held(getattr(PostgresTable, method)))
    for owner, method in _HEARING:
        setattr(owner, method, asking.unheard(getattr(owner, method)))


if __name__ == "__main__":
    learn_late()
    main()
