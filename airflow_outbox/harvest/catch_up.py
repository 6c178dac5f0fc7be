"""Catch up: when an operator asks for it, a term gives a cluster what it has missed, beside harvesting.

While records are harvested, it rests for as long as it works, so that most of the time is theirs. When little is left
for all shards, the first shard's term ends. The rest is published, and the cluster counts, before harvesting goes on
(`harvest.attaching`). A cluster that can't be caught up is refused, and harvesting does not notice it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from airflow_outbox.errors import ConfigurationError, HistoryError, KafkaError
from airflow_outbox.harvest.attaching import SHARD, owed_log, reason_of
from airflow_outbox.harvest.catching_up import CatchingUp
from airflow_outbox.harvest.logs import Logs
from airflow_outbox.harvest.ports import Table, TransactionalLogFactory
from airflow_outbox.harvest.protocol.commitment import PRIMARY, Commitment
from airflow_outbox.values.fence import OperatorRequest

_INTERVAL = 0.25
_AT_A_TIME = 10  # batches, until Postgres is told how far the cluster has got
_FEW = 20
"""Batches that are published while nothing else is, at most."""
_UNTIL_HEARD = 3.0
"""Seconds after which a heartbeat has told that the request was withdrawn."""


class CatchUp:
    """Attends to requests for owed clusters while a term harvests one shard. `request` is what operators ask for now;
    `accounted` is the last batch that Postgres knows the primary to have; `is_busy` is whether records are under way.
    """

    def __init__(
        self,
        *,
        view: UUID,
        shard: int,
        owed: Collection[str],
        table: Table,
        logs: Logs,
        new_logs: Mapping[str, TransactionalLogFactory],
        commitment: Commitment,
        request: Callable[[], OperatorRequest],
        accounted: Callable[[], int],
        is_busy: Callable[[], bool],
    ) -> None:
        self._view = view
        self._shard = shard
        self._owed = owed
        self._table = table
        self._logs = logs
        self._new_logs = new_logs
        self._commitment = commitment
        self._request = request
        self._accounted = accounted
        self._is_busy = is_busy

    async def run(self) -> None:
        """Return when a cluster is to be attached now; on shards other than the first, never. Raises FencedError,
        PostgresError.
        """
        while True:
            if (cluster := self._request().attach) is not None:
                try:
                    if await self._has_caught_up(cluster):
                        return
                except (ConfigurationError, HistoryError, KafkaError) as error:
                    await self._table.refuse_attach(self._view, cluster, reason_of(error))
                    await asyncio.sleep(_UNTIL_HEARD)
            await asyncio.sleep(_INTERVAL)

    async def _has_caught_up(self, cluster: str) -> bool:
        """Give a cluster what it lacks. Return False when it is not asked for any more. Raises ConfigurationError,
        HistoryError, KafkaError.
        """
        if cluster not in self._owed:  # its producers are the term's own
            raise ConfigurationError("it counts already")
        how = self._request().attach_how
        async with owed_log(self._new_logs, cluster) as log:
            catching_up = CatchingUp(self._table, log, places=self._logs[PRIMARY], view=self._view, cluster=cluster)
            if how == "reset":
                await catching_up.require_empty()
                return await self._is_first(cluster)
            await catching_up.begin(how=how, last=self._commitment.completed)
            while self._request().attach == cluster:
                began = asyncio.get_running_loop().time()
                count = await catching_up.advance(most=_AT_A_TIME)
                await catching_up.note(accounted=self._accounted())
                if self._shard == SHARD and count < _AT_A_TIME and await self._is_little_left(catching_up, cluster):
                    return True
                if count < _AT_A_TIME:
                    await asyncio.sleep(_INTERVAL)
                elif self._is_busy():
                    await asyncio.sleep(asyncio.get_running_loop().time() - began)
        return False

    async def _is_first(self, cluster: str) -> bool:
        """Return True on the first shard, and False on others when the cluster is not asked for any more."""
        while self._shard != SHARD and self._request().attach == cluster:
            await asyncio.sleep(_INTERVAL)
        return self._shard == SHARD

    async def _is_little_left(self, catching_up: CatchingUp, cluster: str) -> bool:
        left = await self._table.left_to_catch_up(cluster)
        return left <= _FEW and not await catching_up.waits()
