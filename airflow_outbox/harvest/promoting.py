"""Promoting: a cluster that lacks records becomes the primary, when no cluster that has them can be reached.

Nobody can lead then, since the leader is elected on the primary. So whoever promotes does what a leader would:

1. Each shard is taken over, and those of earlier layouts. An old leader that still runs can't change anything any more.
2. The cluster gets what it lacks from Postgres (`harvest.catching_up`).
3. It becomes the primary, in one transaction, if each shard is still led under the views of step 1.

A batch that was committed on the lost primary and not purged is in the outbox: the next leader publishes its records in
another batch. A batch that is purged, and kept no more, is missing for good. That is refused, unless it is accepted.
Then the cluster goes on after the last batch that anybody has had, so that no number is given twice. Postgres learns of
a loss in step 3 only: if that fails, the cluster is owed all from the first lost batch on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID, uuid4

from airflow_outbox.errors import HistoryError, KafkaError, OutboxError
from airflow_outbox.harvest.attaching import SHARD, owed_log
from airflow_outbox.harvest.catching_up import AT_A_TIME, CatchingUp
from airflow_outbox.harvest.on_each_shard import on_each_shard, opened_table
from airflow_outbox.harvest.ports import Table, TransactionalLogFactory
from airflow_outbox.harvest.protocol.recovery import require_history
from airflow_outbox.harvest.settling import complete
from airflow_outbox.values.fence import Fence, LedgerRow

WriteMembership = Callable[[Mapping[int, UUID], Mapping[int, LedgerRow], Sequence[str]], Awaitable[None]]
"""Writes the membership: given the view of each shard, the cluster's rows, and in words what is missing there."""
_Made = tuple[LedgerRow | None, Sequence[str]]
"""A shard's ledger as it is known now (None: as before), and in words what is missing there."""


@dataclass(frozen=True, kw_only=True)
class Promoting:
    """Promotes a cluster of an outbox that has `shards` shards. `new_table` opens a shard's table, `new_logs` its logs
    by cluster.
    """

    shards: int = 1
    new_table: Callable[[int], Table]
    new_logs: Callable[[int], Mapping[str, TransactionalLogFactory]]
    write: WriteMembership
    new_view: Callable[[], UUID] = uuid4

    async def __call__(self, cluster: str, *, accept_loss: bool = False) -> None:
        """Promote a cluster. Raises OutboxError if it would lack what is purged, unless that is accepted; HistoryError,
        KafkaError; FencedError if a leader takes over, since the primary is there; PostgresError.
        """
        views, dormant = {SHARD: self.new_view()}, list[int]()

        async def made_whole(shard: int) -> _Made:
            async with opened_table(self.new_table, shard) as table:
                fence = await table.take_over(views[shard])
                if shard == SHARD:
                    dormant.extend(fence.dormant)
                require_history(fence)
                if cluster == fence.primary:
                    raise OutboxError(f"cluster {cluster} is the primary already: somebody else has promoted it")
                whole = _Whole(table, self.new_logs(shard), fence, cluster=cluster, view=views[shard])
                row = await whole.with_losses() if accept_loss else await whole.without_loss()
                return row, [f"shard {shard}: {each}" if self.shards > 1 else each for each in whole.missing]

        made = {SHARD: await made_whole(SHARD)}  # first: it tells which shards had slots in an earlier layout
        others = (*range(1, self.shards), *dormant)
        views |= {shard: self.new_view() for shard in others}
        made |= await on_each_shard(others, made_whole)
        rows = {shard: row for shard, (row, _) in made.items() if row is not None}
        await self.write(views, rows, [each for _, missing in made.values() for each in missing])


class _Whole:
    """Makes a cluster whole, as far as possible: it gets what it lacks of one shard. `missing` is what it does not
    get.
    """

    def __init__(
        self, table: Table, new_logs: Mapping[str, TransactionalLogFactory], fence: Fence, *, cluster: str, view: UUID
    ) -> None:
        self.missing: list[str] = []
        self._last_lost = 0
        self._table = table
        self._new_logs = new_logs
        self._fence = fence
        self._cluster = cluster
        self._view = view

    async def without_loss(self) -> LedgerRow | None:
        """Publish all that it lacks. Return what is known of its ledger (None: what was known). Raises OutboxError."""
        try:
            async with self._begun() as catching_up:
                return None if catching_up is None else await self._all(catching_up)
        except HistoryError as error:
            raise OutboxError(
                f"cluster {self._cluster} can't be promoted: {error.difference}. To go on without what is missing "
                "there, use --accept-loss"
            ) from error

    async def with_losses(self) -> LedgerRow | None:
        """Publish whatever is kept, and go on after all that anybody has had."""
        try:
            async with self._begun() as catching_up:
                return None if catching_up is None else await self._all(catching_up)
        except HistoryError:
            async with self._begun(may_lack=True) as catching_up:
                assert catching_up is not None
                return await self._rest(catching_up)

    async def _all(self, catching_up: CatchingUp) -> LedgerRow:
        """The next leader completes what came after the lost primary's witness, as it would have there: that is not
        accounted for yet.
        """
        witnessed, last = self._fence.witness.batch, await self._last()
        while await catching_up.advance(upto=witnessed, most=AT_A_TIME):
            await catching_up.note()
        while await catching_up.advance(upto=last, most=AT_A_TIME):
            pass
        return await self._row(catching_up, witnessed=witnessed)

    async def _rest(self, catching_up: CatchingUp) -> LedgerRow:
        """Postgres learns of no batch from the first loss on before the cluster is the primary: if it does not become
        that, what is written there is not what others have.
        """
        witnessed, last = self._fence.witness.batch, await self._last()
        while entries := await self._table.owed_entries(after=catching_up.batch, upto=last, most=AT_A_TIME):
            for entry in entries:
                await self._leave_out(catching_up, upto=entry.batch - 1)
                if not await catching_up.publish(entry, may_lack=True):
                    self._lacks(f"records of batch {entry.batch}", batch=entry.batch)
            if not self.missing:
                await catching_up.note()
        await self._leave_out(catching_up, upto=last)
        await self._complete(after=witnessed, upto=last)
        return await self._row(catching_up, witnessed=None if self._last_lost > witnessed else witnessed)

    async def _leave_out(self, catching_up: CatchingUp, *, upto: int) -> None:
        first = catching_up.batch + 1
        if upto >= first:
            self._lacks(f"batch {first}" if first == upto else f"batches {first} to {upto}", batch=upto)
            await catching_up.skip_to(upto)

    def _lacks(self, missing: str, *, batch: int) -> None:
        self.missing.append(missing)
        self._last_lost = batch

    async def _complete(self, *, after: int, upto: int) -> None:
        """The records of a kept batch may be in the outbox still. Where a batch is lost after the witness, the next
        leader begins after all of them, and would publish them again.
        """
        while entries := await self._table.owed_entries(after=after, upto=upto, most=AT_A_TIME):
            for entry in entries:
                await complete(self._table, self._view, entry)
            after = entries[-1].batch

    async def _last(self) -> int:
        """The last batch that Postgres knows of, on any cluster."""
        fence = self._fence
        rows = [*fence.backups.values(), *fence.owed.values()]
        known = [fence.witness.batch, *(row.witness.batch for row in rows)]
        return max(*known, await self._table.last_owed())

    @asynccontextmanager
    async def _begun(self, *, may_lack: bool = False) -> AsyncIterator[CatchingUp | None]:
        """Begin to catch it up. Yield None if it has all, and the next leader has only to complete it."""
        async with owed_log(self._new_logs, self._cluster) as log:
            catching_up = CatchingUp(self._table, log, places=log, view=self._view, cluster=self._cluster)
            try:
                await catching_up.begin(how=None, last=await self._last(), may_lack=may_lack)
            except HistoryError:
                if not catching_up.is_unfinished:
                    raise
                yield None
            else:
                yield catching_up

    @staticmethod
    async def _row(catching_up: CatchingUp, *, witnessed: int | None = None) -> LedgerRow:
        if await catching_up.waits():
            raise KafkaError("records that it has alone wait in the outbox: they would be published there once more")
        return await catching_up.row(witnessed=witnessed)
