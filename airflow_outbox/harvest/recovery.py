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
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.ports import Table, TransactionalLog
from airflow_outbox.harvest.protocol.ledger import Entry
from airflow_outbox.harvest.protocol.parking import ParkedLanes
from airflow_outbox.harvest.protocol.recovery import Recovery, recover, require_given_up, require_no_rival
from airflow_outbox.harvest.settling import complete
from airflow_outbox.harvest.term import Term
from airflow_outbox.values.fence import Fence, Flushed, recorded_ids
from airflow_outbox.values.pages import PageSnapshot

DELIVERY = "exactly_once"
_FENCING_INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where a term that harvests exactly once begins: every batch that any view has committed is completed.

    - `fence`: the fence row, read after all older producers were fenced
    - `ledger`: the position in the ledger, and the entries that are kept there
    - `flushed`: how far everything is out
    - `parked`: the parked lanes; `parked_in_part`: the transactions of which a part is parked (`atomic` outboxes)
    - `first_reading`: where to begin to read
    """

    fence: Fence
    ledger: Recovery
    flushed: Flushed
    parked: ParkedLanes
    parked_in_part: Collection[int]
    first_reading: PageSnapshot


class RecoveryTerm(Term):
    """Completes batches committed exactly once, before the outbox is harvested on, in this mode or another one.

    Its take-over found `fence`. `recovered` is None until it has ended.
    """

    def __init__(
        self,
        *,
        view: UUID,
        fence: Fence,
        table: Table,
        log: TransactionalLog,
        limits: Limits,
        published: Counter[str],
        own_views: Collection[UUID] = (),
        atomic: bool = False,
        goes_on: bool = True,
    ) -> None:
        """`goes_on`: the outbox is harvested exactly once after this, and the place to begin is looked for."""
        super().__init__(view=view, request=fence.request, table=table, limits=limits, published=published)
        self._fence = fence
        self._log = log
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
        table, log = self._table, self._log
        glimpse = await log.glimpse(self._fence.witness.offset)
        require_no_rival(await table.fence(self.view), glimpse)
        await log.fence(self._fence.producers)
        ledger = await log.ledger(self._fence.witness.offset)
        fence = await table.fence(self.view)  # again: older views could commit until the log was fenced
        require_given_up(fence, log.unfenced, own_views=self._own_views)
        recovery = recover(fence, ledger)
        await self._require_readable(entry for entry in recovery.unpurged if entry.unparked)
        for entry in recovery.unpurged:
            await complete(table, self.view, entry)
        flushed = fence.flushed.with_more(entry.topics() for entry in recovery.unpurged)
        await table.begin(
            self.view,
            delivery=DELIVERY,
            witness=recovery.witness,
            transactional_ids=recorded_ids(log.transactional_ids, given_up=log.unfenced),
            flushed=flushed,
        )
        in_part = await table.parked_in_part() if self._atomic else ()
        parked = ParkedLanes(*await table.parked_lanes())
        first = await table.first_reading(flushed.watermark) if self._goes_on else PageSnapshot()
        self.recovered = Recovered(fence, recovery, flushed, parked, in_part, first)

    async def _require_readable(self, retried: Iterable[Entry]) -> None:
        """Raise KafkaError when records committed from the parked table can't be read yet.

        The watermark has passed them: they would count as published as soon as they are no longer parked.
        """
        for entry in retried if self._log.unfenced else ():
            if not await self._log.are_readable(entry.extents):
                topics = " and ".join(sorted(entry.topics()))
                raise KafkaError(
                    f"parked records were published, but can't be read yet: too few brokers are up for a partition "
                    f"of {topics}. Bring them back"
                )


async def fence_rest(view: UUID, table: Table, log: TransactionalLog) -> None:
    """Once a second, try to fence the ids that recovery left unfenced. Never ends."""
    while True:
        await asyncio.sleep(_FENCING_INTERVAL)
        if log.unfenced:
            await table.require_fence(view)  # a successor may use the ids again
            await log.fence_rest()
