"""The modes of delivery: they decide in which terms a view harvests.

A table has one mode at a time, which its fence row names. A leader that takes over in another mode first settles the
work that the old one may have left under way, so that the promises of neither are broken:

- to exactly once: records that carry a mark may be published already. They are published and purged at least once
  before the first window is read. Records without a mark were never sent, or have been reset;
- to at least once: batches that the ledger lists as committed are purged before the first record is marked.

The fence row is checked before anything is sent, and before a producer is made that would fence others. So a database
that Postgres alone shows to be a copy never disturbs the original's harvesters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

from airflow_outbox.harvest.at_least_once import RowMarksTerm
from airflow_outbox.harvest.config import DeliveryMode, Limits
from airflow_outbox.harvest.exactly_once import ExactlyOnceTerm
from airflow_outbox.harvest.ports import Events, Log, LogFactory, Table, TransactionalLog, TransactionalLogFactory
from airflow_outbox.harvest.protocol.batch_size import Pace
from airflow_outbox.harvest.protocol.parking import Caution
from airflow_outbox.harvest.protocol.recovery import require_history
from airflow_outbox.harvest.protocol.transaction_headers import StampNames
from airflow_outbox.harvest.recovery import RecoveryTerm
from airflow_outbox.harvest.term import Term
from airflow_outbox.values.fence import Fence

_LONGEST_SENDING = 5.0
_SHARE_OF_TIMEOUT = 6  # of the time that Kafka gives a transaction

AnyLog = TypeVar("AnyLog", bound=Log | TransactionalLog)


class Modes:
    """Makes the terms of a view, in the mode that is configured."""

    def __init__(
        self,
        *,
        delivery: DeliveryMode,
        table: Table,
        new_log: LogFactory,
        new_transactional_log: TransactionalLogFactory,
        limits: Limits,
        atomic: bool = False,
        stamp_names: StampNames | None = None,
        report: Events,
    ) -> None:
        self.delivery = delivery
        self._table = table
        self._new_log = new_log
        self._new_transactional_log = new_transactional_log
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

    async def terms(self, view: UUID, fence: Fence, published: Counter[str]) -> AsyncGenerator[Term, None]:
        """Yield the terms to run, one by one; the last one lasts until it is stopped. Close this after use.

        Raises HistoryError.
        """
        self._own_views.add(view)
        if "exactly_once" in (self.delivery, fence.delivery):
            require_history(fence)
        if self.delivery == "exactly_once":
            async with self._opened(self._new_transactional_log) as transactional_log:
                if fence.delivery != "exactly_once" and await self._table.holds_marks():
                    async with self._opened(self._careful_log) as log:
                        yield self._row_marks(view, fence, published, log=log, draining=True)
                recovery = self._recovery(view, fence, published, log=transactional_log, goes_on=True)
                yield recovery
                assert recovery.recovered is not None
                yield ExactlyOnceTerm(
                    view=view,
                    request=fence.request,
                    recovered=recovery.recovered,
                    table=self._table,
                    log=transactional_log,
                    limits=self._limits,
                    published=published,
                    caution=self._caution,
                    pace=self._pace,
                    report=self._report,
                    atomic=self._atomic,
                    stamp_names=self._stamp_names,
                )
            return
        witness = fence.witness
        if fence.delivery == "exactly_once":
            async with self._opened(self._new_transactional_log) as transactional_log:
                recovery = self._recovery(view, fence, published, log=transactional_log, goes_on=False)
                yield recovery
                assert recovery.recovered is not None
                witness = recovery.recovered.ledger.witness
        if fence.delivery != self.delivery:
            await self._table.begin(view, delivery=self.delivery, witness=witness)
        async with self._opened(self._careful_log) as log:
            yield self._row_marks(view, fence, published, log=log, draining=False)

    def _recovery(
        self, view: UUID, fence: Fence, published: Counter[str], *, log: TransactionalLog, goes_on: bool
    ) -> RecoveryTerm:
        return RecoveryTerm(
            view=view,
            fence=fence,
            table=self._table,
            log=log,
            limits=self._limits,
            published=published,
            own_views=self._own_views,
            atomic=self._atomic and goes_on,
            goes_on=goes_on,
        )

    def _row_marks(
        self, view: UUID, fence: Fence, published: Counter[str], *, log: Log, draining: bool
    ) -> RowMarksTerm:
        return RowMarksTerm(
            view=view,
            request=fence.request,
            table=self._table,
            log=log,
            limits=self._limits,
            published=published,
            caution=self._caution,
            report=self._report,
            draining=draining,
        )

    async def _careful_log(self) -> Log:
        return await self._new_log(individually=self._caution.is_careful)

    @asynccontextmanager
    async def _opened(self, factory: Callable[[], Awaitable[AnyLog]]) -> AsyncIterator[AnyLog]:
        log = await factory()
        try:
            yield log
        finally:
            await log.close()
