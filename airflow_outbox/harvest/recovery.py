"""Recovery: complete what earlier views have committed exactly once, before the next record is read.

It goes in this order, and each step relies on the ones before it:

1. the fence row names this view (the caller has taken over): no older view's statement can change anything any more;
2. a glimpse of the ledger is compared with the fence row: a copy of the database disturbs no original;
3. the log fences every older producer, by all transactional ids that were used since they were last fenced: no older
   view's transaction can be committed any more, and none is open;
4. the ledger is read up to its end, so it is complete for all views before this one;
5. fence row and ledger are compared (`protocol.recovery`): unless they belong to one history, nothing happens;
6. committed batches that are not known to be purged are purged. All records in the table are now unpublished;
7. the transactional ids that this term will use are recorded in the ledger's row, beside the fence row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.logs import Logs, at_once, opened
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.ports import Table, TransactionalLogFactory
from airflow_outbox.harvest.protocol.clusters import incomplete
from airflow_outbox.harvest.protocol.commitment import PRIMARY
from airflow_outbox.harvest.protocol.ledger import Ledger
from airflow_outbox.harvest.protocol.parking import ParkedLanes
from airflow_outbox.harvest.protocol.recovery import Recovery, recover, require_given_up, require_no_rival
from airflow_outbox.harvest.replay import replay
from airflow_outbox.harvest.settling import complete
from airflow_outbox.harvest.term import Term
from airflow_outbox.values.fence import Fence, Flushed, LedgerRow, recorded_ids
from airflow_outbox.values.pages import PageSnapshot

DELIVERY = "exactly_once"
_FENCING_INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where a term that harvests exactly once begins: every batch that any view has committed is completed.

    - `fence`: the fence row, read after all older producers were fenced
    - `ledgers`: the position in each log's ledger, and the entries that are kept there
    - `flushed`: how far everything is out
    - `parked`: the parked lanes; `parked_in_part`: the transactions of which a part is parked (`atomic` outboxes)
    - `first_reading`: where to begin to read
    """

    fence: Fence
    ledgers: Sequence[Recovery]
    flushed: Flushed
    parked: ParkedLanes
    parked_in_part: Collection[int]
    first_reading: PageSnapshot


class RecoveryTerm(Term):
    """Completes batches committed exactly once, before the outbox is harvested on, in this mode or another one.

    Its take-over found `fence`. `recovered` is None until it has ended.
    """

    prepares = True

    def __init__(
        self,
        *,
        view: UUID,
        fence: Fence,
        table: Table,
        logs: Logs,
        limits: Limits,
        measures: Measures,
        own_views: Collection[UUID] = (),
        atomic: bool = False,
        goes_on: bool = True,
    ) -> None:
        """`goes_on`: the outbox is harvested exactly once after this, and the place to begin is looked for."""
        super().__init__(view=view, request=fence.request, table=table, limits=limits, measures=measures)
        self._fence = fence
        self._logs = logs
        self._own_views = own_views
        self._atomic = atomic
        self._goes_on = goes_on
        self.recovered: Recovered | None = None

    @property
    def in_flight(self) -> int:
        return 0

    def stop(self) -> None:
        """Nothing is sent, and completing what is committed takes a moment."""

    async def run(self) -> None:
        """Recover. Raises FencedError, HistoryError, KafkaError, PostgresError."""
        table, logs, before = self._table, self._logs, self._fence
        glimpses = await logs.on_all(lambda cluster, log: log.glimpse(before.on(cluster).witness.offset))
        fence = await table.fence(self.view)
        for cluster, glimpse in zip(logs.clusters, glimpses, strict=True):
            with logs.naming(cluster):
                require_no_rival(fence.on(cluster), glimpse)
        await logs.on_all(lambda cluster, log: log.fence(before.on(cluster).producers))
        ledgers = await self._ledgers()
        fence = await table.fence(self.view)  # again: older views could commit until the logs were fenced
        for number, cluster in enumerate(logs.clusters):
            with logs.naming(cluster):
                require_given_up(fence.on(cluster), logs[number].unfenced, own_views=self._own_views)
        recoveries = self._compared(fence, ledgers)
        if len(logs) > 1 and await self._complete_on_all(fence, recoveries):
            recoveries = self._compared(fence, await self._ledgers())
        unpurged = recoveries[PRIMARY].unpurged
        await self._require_readable(recoveries)
        for entry in unpurged:
            await complete(table, self.view, entry, is_owed=bool(fence.owed))
        flushed = fence.flushed.with_more(entry.topics() for entry in unpurged)
        primary, *backups = (
            LedgerRow(
                recovery.witness,
                tuple(recorded_ids(logs[number].transactional_ids, given_up=logs[number].unfenced)),
            )
            for number, recovery in enumerate(recoveries)
        )
        await table.begin(
            self.view,
            delivery=DELIVERY,
            witness=primary.witness,
            transactional_ids=primary.transactional_ids,
            flushed=flushed,
            backups=dict(zip(fence.backups, backups, strict=True)),
        )
        in_part = await table.parked_in_part() if self._atomic else ()
        parked = ParkedLanes(*await table.parked_lanes(most=ParkedLanes.most_lanes))
        first = await table.first_reading(flushed.watermark) if self._goes_on else PageSnapshot()
        self.recovered = Recovered(fence, recoveries, flushed, parked, in_part, first)

    async def _ledgers(self) -> Sequence[Ledger]:
        fence = self._fence
        return await self._logs.on_all(lambda cluster, log: log.ledger(fence.on(cluster).witness.offset))

    def _compared(self, fence: Fence, ledgers: Sequence[Ledger]) -> list[Recovery]:
        """Compare each cluster's ledger with the fence row. Return what to complete, by log. Raises HistoryError."""
        found: list[Recovery] = []
        for cluster, ledger in zip(self._logs.clusters, ledgers, strict=True):
            with self._logs.naming(cluster):
                found.append(recover(fence.on(cluster), ledger))
        return found

    async def _complete_on_all(self, fence: Fence, recoveries: Sequence[Recovery]) -> bool:
        """Commit the last batch on the clusters that lack it. Return whether there were any."""
        found = incomplete(dict(zip(self._logs.clusters, recoveries, strict=True)), is_promoted=fence.is_promoted)
        if found is None:
            return False
        entry, lacking = found
        await at_once(
            [
                replay(
                    entry,
                    number,
                    view=self.view,
                    fence=fence,
                    found=recoveries[number],
                    highest_id=max(recovery.witness.highest_id for recovery in recoveries),
                    table=self._table,
                    logs=self._logs,
                )
                for number in lacking
            ]
        )
        return True

    async def _require_readable(self, recoveries: Sequence[Recovery]) -> None:
        """Raise KafkaError when records committed from the parked table can't be read yet.

        The watermark has passed them: they would count as published as soon as they are no longer parked.
        """
        if not self._logs.are_unfenced:
            return
        for number, recovery in enumerate(recoveries):
            for entry in recovery.unpurged:
                if entry.unparked and not await self._logs[number].are_readable(entry.extents):
                    topics = " and ".join(sorted(entry.topics()))
                    with self._logs.naming(self._logs.clusters[number]):
                        raise KafkaError(
                            "parked records were published, but can't be read yet: too few brokers are up for a "
                            f"partition of {topics}. Bring them back"
                        )


@asynccontextmanager
async def completed(
    new_logs: Mapping[str, TransactionalLogFactory],
    *,
    view: UUID,
    fence: Fence,
    table: Table,
    limits: Limits,
    measures: Measures,
) -> AsyncIterator[tuple[Logs, Recovered]]:
    """Complete what is committed on a shard that was taken over and is not harvested on now. Yield its logs, which are
    closed at the end, and what was found. Raises as `RecoveryTerm.run`, and ConfigurationError.
    """
    async with opened(new_logs, fence) as logs:
        recovery = RecoveryTerm(
            view=view, fence=fence, table=table, logs=logs, limits=limits, measures=measures, goes_on=False
        )
        await recovery.run()
        assert recovery.recovered is not None
        yield logs, recovery.recovered


async def fence_rest(view: UUID, table: Table, logs: Logs) -> None:
    """Once a second, try to fence the ids that recovery left unfenced. Never ends."""
    while True:
        await asyncio.sleep(_FENCING_INTERVAL)
        if logs.are_unfenced:
            await table.require_fence(view)  # a successor may use the ids again
            await logs.fence_rest()
