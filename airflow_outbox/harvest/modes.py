"""The modes of delivery: each decides which terms a view runs.

A table has one mode at a time, which its fence row names. A leader that takes over in another mode first settles the
work that the old one may have left under way, so that the promises of neither are broken:

- to exactly once: records that carry a mark may be published already. They are published and purged at least once
  before the first window is read. Records without a mark were never sent, or have been reset;
- to at least once: batches that the ledger lists as committed are purged before the first record is marked.

The fence row is checked before anything is sent, and before a producer is made that would fence others. So a database
that Postgres alone shows to be a copy never disturbs the original's harvesters.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from uuid import UUID

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.at_least_once import RowMarksTerm
from airflow_outbox.harvest.config import DeliveryMode, Limits
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.logs import Logs, opened
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.ports import Events, Log, LogFactory, Table, TransactionalLogFactory
from airflow_outbox.harvest.protocol.batch_size import Pace
from airflow_outbox.harvest.protocol.commitment import PRIMARY
from airflow_outbox.harvest.protocol.parking import Caution
from airflow_outbox.harvest.protocol.recovery import require_history
from airflow_outbox.harvest.protocol.transaction_headers import StampNames
from airflow_outbox.harvest.recovery import RecoveryTerm
from airflow_outbox.harvest.term import Term
from airflow_outbox.values.fence import Fence

_LONGEST_SENDING = 5.0
_SHARE_OF_TIMEOUT = 6  # of the time that Kafka gives a transaction


class Modes:
    """Makes the terms of a view, in the mode that is configured."""

    def __init__(
        self,
        *,
        delivery: DeliveryMode,
        table: Table,
        new_log: LogFactory,
        new_transactional_logs: Mapping[str, TransactionalLogFactory],
        limits: Limits,
        atomic: bool = False,
        stamp_names: StampNames | None = None,
        report: Events,
    ) -> None:
        """`new_transactional_logs`: those of the clusters that are configured, by name."""
        self.delivery = delivery
        self._table = table
        self._new_log = new_log
        self._new_transactional_logs = new_transactional_logs
        self._limits = limits
        self._atomic = atomic
        self._stamp_names = stamp_names
        self._report = report
        self._own_views: set[UUID] = set()
        self._caution = Caution()
        self._pace = Pace(longest=min(_LONGEST_SENDING, limits.transaction_timeout / _SHARE_OF_TIMEOUT))

    def begin_leadership(self) -> None:
        """Forget refusals of an earlier leadership's retry: they may have been corrected since."""
        self._caution.end_retry()

    async def terms(self, view: UUID, fence: Fence, measures: Measures) -> AsyncGenerator[Term, None]:
        """Yield the terms to run, one by one; the last one lasts until it is stopped. Close this after use.

        Raises ConfigurationError, HistoryError.
        """
        self._own_views.add(view)
        if fence.backups:
            self._require_several_clusters_possible()
        if "exactly_once" in (self.delivery, fence.delivery):
            require_history(fence)
        if self.delivery == "exactly_once":
            async with opened(self._new_transactional_logs, fence) as logs:
                if fence.delivery != "exactly_once" and await self._table.holds_marks():
                    async with self._careful_log() as log:
                        yield self._row_marks(view, fence, measures, log=log, draining=True)
                recovery = self._recovery(view, fence, measures, logs=logs, goes_on=True)
                yield recovery
                assert recovery.recovered is not None
                yield ExactlyOnceTerm(
                    view=view,
                    request=fence.request,
                    recovered=recovery.recovered,
                    table=self._table,
                    logs=logs,
                    limits=self._limits,
                    measures=measures,
                    caution=self._caution,
                    pace=self._pace,
                    report=self._report,
                    atomic=self._atomic,
                    stamp_names=self._stamp_names,
                    new_logs=self._new_transactional_logs,
                )
            return
        witness = fence.witness
        if fence.delivery == "exactly_once":
            async with opened(self._new_transactional_logs, fence) as logs:
                recovery = self._recovery(view, fence, measures, logs=logs, goes_on=False)
                yield recovery
                assert recovery.recovered is not None
                witness = recovery.recovered.ledgers[PRIMARY].witness
        if fence.delivery != self.delivery:
            await self._table.begin(view, delivery=self.delivery, witness=witness)
        async with self._careful_log() as log:
            yield self._row_marks(view, fence, measures, log=log, draining=False)

    def _require_several_clusters_possible(self) -> None:
        """Raise ConfigurationError for what would let clusters differ."""
        if self.delivery != "exactly_once":
            raise ConfigurationError("an outbox with several clusters needs delivery: exactly_once")
        if self._stamp_names:  # a batch that is completed on another cluster would lack these headers there
            raise ConfigurationError("an outbox with several clusters has no transaction_headers. Remove them")

    def _recovery(self, view: UUID, fence: Fence, measures: Measures, *, logs: Logs, goes_on: bool) -> RecoveryTerm:
        return RecoveryTerm(
            view=view,
            fence=fence,
            table=self._table,
            logs=logs,
            limits=self._limits,
            measures=measures,
            own_views=self._own_views,
            atomic=self._atomic and goes_on,
            goes_on=goes_on,
        )

    def _row_marks(self, view: UUID, fence: Fence, measures: Measures, *, log: Log, draining: bool) -> RowMarksTerm:
        return RowMarksTerm(
            view=view,
            request=fence.request,
            table=self._table,
            log=log,
            limits=self._limits,
            measures=measures,
            caution=self._caution,
            report=self._report,
            draining=draining,
        )

    @asynccontextmanager
    async def _careful_log(self) -> AsyncIterator[Log]:
        log = await self._new_log(individually=self._caution.is_careful)
        try:
            yield log
        finally:
            await log.close()
