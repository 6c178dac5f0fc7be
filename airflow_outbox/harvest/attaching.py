"""Attaching: a cluster that is owed records gets the last of them, and counts again.

It has most of what it missed already: that comes beside harvesting (`harvest.catch_up`). The rest takes a moment, in
which nothing else is published:

1. Each shard is taken over, and what is committed on the clusters that count is completed (`harvest.recovery`).
2. The owed cluster gets what it lacks of that shard (`harvest.catching_up`).
3. It counts again, in one transaction, under a view of its own: no older view decided anything for this membership.

This concerns all shards that were ever harvested: those that have no slots in the present layout may have some in a
later one, and the cluster counts there, too.

A cluster that can't be attached stays owed, and nobody waits for it. While a cluster is being attached, nobody leads
the shards other than the first. So the request is also withdrawn when a cluster that counts can't be reached or
compared. When Postgres is away, or the leader dies, whoever leads the first shard does it all again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID, uuid4

from airflow_outbox.errors import ConfigurationError, HistoryError, KafkaError, OutboxError
from airflow_outbox.harvest.catching_up import AT_A_TIME, CatchingUp
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.on_each_shard import on_each_shard, opened_table
from airflow_outbox.harvest.ports import Table, TransactionalLog, TransactionalLogFactory
from airflow_outbox.harvest.protocol.commitment import PRIMARY
from airflow_outbox.harvest.protocol.recovery import require_history
from airflow_outbox.harvest.recovery import completed
from airflow_outbox.values.fence import AttachHow, Fence, LedgerRow

SHARD = 0


class _RefusedError(Exception):
    """The cluster can't be attached, for this reason."""


@dataclass(frozen=True, kw_only=True)
class Attaching:
    """Attaches clusters of an outbox that has `shards` shards in this layout. `new_table` opens a shard's table,
    `new_logs` its logs by cluster.
    """

    shards: int = 1
    new_table: Callable[[int], Table]
    new_logs: Callable[[int], Mapping[str, TransactionalLogFactory]]
    limits: Limits
    measures: Measures
    new_view: Callable[[], UUID] = uuid4

    async def __call__(
        self, cluster: str, *, how: AttachHow | None = None, view: UUID, after: Collection[UUID], successor: UUID
    ) -> None:
        """Attach a cluster. The caller leads the first shard under one of the views `after`; then the fence names the
        `successor`.

        Where the cluster can't be attached, the request is withdrawn, and the fence names `view`. So it is, too, where
        it was withdrawn before, and before ConfigurationError, HistoryError or KafkaError is raised for clusters that
        count. Raises FencedError, PostgresError.
        """
        async with opened_table(self.new_table, SHARD) as first:
            fence = await first.take_over(view, after=after)
            if self.shards > 1 and not await first.close_attach(view, cluster):
                return  # another shard's leader has refused it since
            others = {shard: self.new_view() for shard in (*range(1, self.shards), *fence.dormant)}
            try:
                if cluster not in fence.owed:
                    raise _RefusedError("it counts already")
                rows = {SHARD: await self._caught_up(first, fence, view, cluster, how)}
                rows |= await on_each_shard(others, lambda shard: self._taken(shard, others[shard], cluster, how))
            except _RefusedError as refusal:
                return await first.refuse_attach(view, cluster, str(refusal))
            except (ConfigurationError, HistoryError, KafkaError) as error:
                reason = f"the clusters that count could not be completed before: {reason_of(error)}"
                await first.refuse_attach(view, cluster, reason)  # otherwise nobody would lead the other shards
                raise
            await first.attach({SHARD: view, **others}, successor, cluster, rows, lacks=how == "reset")

    async def _taken(self, shard: int, view: UUID, cluster: str, how: AttachHow | None) -> LedgerRow:
        """Take over another shard than the first, and do the same there."""
        async with opened_table(self.new_table, shard) as table:
            return await self._caught_up(table, await table.take_over(view), view, cluster, how)

    async def _caught_up(
        self, table: Table, fence: Fence, view: UUID, cluster: str, how: AttachHow | None
    ) -> LedgerRow:
        """Complete what is committed on a shard that was taken over, and give the cluster what it lacks. Return its
        row. Raises _RefusedError, and as `__call__`.
        """
        new_logs = self.new_logs(fence.shard)
        require_history(fence)
        async with completed(
            new_logs, view=view, fence=fence, table=table, limits=self.limits, measures=self.measures
        ) as (logs, found):
            last = found.ledgers[PRIMARY].witness.batch
            try:
                async with owed_log(new_logs, cluster) as log:
                    catching_up = CatchingUp(table, log, places=logs[PRIMARY], view=view, cluster=cluster)
                    await catching_up.begin(how=how, last=last)
                    while await catching_up.advance(upto=last, most=AT_A_TIME):
                        await catching_up.note()
                    if await catching_up.waits():
                        raise KafkaError("records that it has alone wait to be published elsewhere. Try again then")
                    return await catching_up.row()
            except (ConfigurationError, HistoryError, KafkaError) as error:
                raise _RefusedError(reason_of(error)) from error


@asynccontextmanager
async def owed_log(new_logs: Mapping[str, TransactionalLogFactory], cluster: str) -> AsyncIterator[TransactionalLog]:
    """Open a log on a cluster that does not count. Raises KafkaError."""
    if cluster not in new_logs:
        raise KafkaError(f"this configuration does not name cluster {cluster}. Add it to `clusters`")
    log = await new_logs[cluster]()
    try:
        yield log
    finally:
        await log.close()


def reason_of(error: OutboxError) -> str:
    """Return why a cluster can't be attached, for the one who asked."""
    return error.difference if isinstance(error, HistoryError) else str(error)
