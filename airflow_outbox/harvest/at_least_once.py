"""One term of harvesting at least once: mark → publish → purge, by marks in the rows (goharvest's protocol).

Activities overlap, and none waits for a record of another activity:

- *marking* claims the next records as long as the bounds leave room, and sends those whose key has nothing in flight;
- *settling* takes the log's reports and sends the next record of each delivered one's key;
- *purging* deletes delivered records: all since its last statement, in one statement;
- *attending* looks once a second for parked records that are to be published now or discarded.

Records that can't be published, and those behind them in their lanes, are moved into the parked table instead
(`protocol.parking`). There is no ledger, so a record that is published from there may come twice.

A term ends

- when it is asked to: it sends nothing more, waits for the records that it has sent, and purges them;
- when the fence names another view: FencedError, at once;
- when a statement's outcome is unknown: PostgresError, at once;
- when a record was not, or perhaps not, delivered: sent records settle, delivered ones are purged, failed ones are
  reset: PublishError.

The next leader marks the remaining records under a new view.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from uuid import UUID

from airflow_outbox.errors import OutboxError, RecordsRefusedError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.parking_events import report_discarded, report_parked, report_retried
from airflow_outbox.harvest.ports import Delivery, Events, Log, Table
from airflow_outbox.harvest.protocol.in_flight import InFlight
from airflow_outbox.harvest.protocol.parking import Caution, ParkedLanes, SingleRecords
from airflow_outbox.harvest.term import ATTENDING_INTERVAL, Term, pause
from airflow_outbox.values.fence import OperatorRequest
from airflow_outbox.values.metrics import Stage
from airflow_outbox.values.records import MarkedRecord


class _ParkedRecord(MarkedRecord):
    """A record of the parked table, with its number there in place of an id."""

    __slots__ = ()


class RowMarksTerm(Term):
    """Harvests at least once. When `draining`, only records that others have marked; ends once these are purged.

    The class is large because its activities (mark, settle, purge, attend) share what is in flight, and end together.
    """

    def __init__(
        self,
        *,
        view: UUID,
        request: OperatorRequest,
        table: Table,
        log: Log,
        limits: Limits,
        measures: Measures,
        caution: Caution,
        report: Events,
        draining: bool = False,
    ) -> None:
        super().__init__(view=view, request=request, table=table, limits=limits, measures=measures)
        self._log = log
        self._draining = self.prepares = draining
        self._in_flight = InFlight(max_records=limits.max_in_flight_records, max_bytes=limits.max_in_flight_bytes)
        self._delivered: list[MarkedRecord] = []
        self._undelivered: list[MarkedRecord] = []
        self._failure: OutboxError | None = None
        self._settled = asyncio.Event()
        self._parked = ParkedLanes({}, ())
        self._dividing = SingleRecords(self._parked)
        self._due: set[int] = set()  # numbers of parked records that are on their way
        self._attended = asyncio.Event()
        self._releasing = True  # something may be free of its hold
        self._parking = asyncio.Lock()  # records are parked, or leave the parked table, one after the other
        self._caution = caution
        self._report = report

    @property
    def in_flight(self) -> int:
        return self._in_flight.records

    def stop(self) -> None:
        self._in_flight.stop()
        for event in (self._stopping, self._settled, self._room_made):
            event.set()

    async def run(self) -> None:
        self._parked = ParkedLanes(*await self._table.parked_lanes(most=ParkedLanes.most_lanes))
        self._dividing = SingleRecords(self._parked)
        await self._run([self._mark(), self._purge()], serving=[self._settle(), self._attend()])
        if self._failure is not None:
            await self._table.reset(
                self.view, [record.id for record in self._undelivered if not isinstance(record, _ParkedRecord)]
            )
            raise self._failure

    async def _mark(self) -> None:
        interval = self._limits.poll_interval
        while not self._stopping.is_set():
            self._room_made.clear()
            records, size = self._in_flight.room
            if self.request.paused or records <= 0 or size <= 0:
                await self._room_made.wait()
                continue
            began = self._measures.now()
            marked = await self._table.mark(
                self.view,
                max_records=min(records, self._limits.mark_records),
                max_bytes=size,
                only_marked=self._draining,
            )
            if marked:
                self._measures.took(Stage.READ, began)
                interval = self._came()
                await self._divide(marked)
            elif self._draining and self.in_flight == 0:
                self.stop()
            else:
                interval = await self._idle(interval)

    async def _divide(self, marked: Sequence[MarkedRecord]) -> None:
        """Send records that can be published. Park the others, and those that wait behind them."""
        refusals = await self._log.examine(marked)
        refusals = {**self._caution.known(marked, at=_now(), parked=False), **refusals}
        await self._ask_which_wait(marked, self._parked)
        diversion = self._parked.divert(marked, refusals)
        self._send(diversion.published)
        if not diversion:
            return
        # Records before them in their lanes may come back, and would then have to be parked first.
        aside = {*diversion.refused, *diversion.waiting}
        lanes = {(record.topic, record.key) for record in marked if record.id in aside}
        while any(map(self._in_flight.holds, lanes)) and not self._stopping.is_set():
            await pause(self._limits.poll_interval, self._stopping)
        if self._stopping.is_set():
            return  # the next view marks them again
        async with self._parking:
            again = [record for record in marked if record.id in aside]
            await self._ask_which_wait(again, self._parked)
            diversion = self._parked.divert_again(again, refusals)
            self._send(diversion.published)
            if diversion:
                await self._table.park(self.view, diversion.groups(), None)
        self._caution.forget([*diversion.refused, *diversion.waiting], parked=False)
        report_parked(self._report, diversion)

    def _send(self, records: Iterable[MarkedRecord]) -> None:
        for record in self._in_flight.admit(records):
            self._log.send(record)

    async def _attend(self) -> None:
        while True:
            await asyncio.sleep(ATTENDING_INTERVAL)
            if not self._parked or self._stopping.is_set() or self.request.paused:
                continue
            async with self._parking:
                discarded = await self._table.discard_requested(self.view)
                self._parked.gone(discarded)
            report_discarded(self._report, discarded)
            if discarded or self._releasing:
                self._releasing = False
                if await self._table.release(self.view, max_records=self._limits.mark_records):
                    self._releasing = True
            most = -(-self._limits.max_in_flight_bytes // 3)
            due = await self._table.parked_due(
                max_records=self._limits.mark_records, max_bytes=most, of_all_lanes=False
            )
            records = [_ParkedRecord._make(row[:7]) for row in due]
            refusals = await self._log.examine(records, again=True)
            refusals = {**self._caution.known(records, at=_now(), parked=True), **refusals}
            retry = self._dividing.due(records, refusals, lengths={})
            if retry.refused:
                await self._table.note_refusals(self.view, retry.refused, others=retry.others)
                self._caution.refused_again(retry.refused)
                self._caution.end_retry()
                self._releasing |= self._parked.admit(retry.passed)
                report_retried(self._report, topics=Counter(), refused=retry.refused)
            self._due = {record.id for record in retry.published}
            self._attended.clear()
            self._send(retry.published)
            if self._due:
                await self._attended.wait()  # else records under way would be found due again

    async def _settle(self) -> None:
        while True:
            for delivery in await self._log.deliveries():
                if delivery.error is None:
                    self._delivered.append(delivery.record)
                    following = self._in_flight.delivered(delivery.record)
                    if following is not None:
                        self._log.send(following)
                else:
                    self._fail(delivery, delivery.error)
            self._settled.set()

    def _fail(self, delivery: Delivery, error: OutboxError) -> None:
        self._undelivered.append(delivery.record)
        self._in_flight.undeliverable(delivery.record)
        if isinstance(error, RecordsRefusedError) and (error.records or self._failure is None):
            parked = isinstance(delivery.record, _ParkedRecord)
            # Unless Kafka names one, it may be any that was sent with it.
            mixed = [record for record in self._undelivered if isinstance(record, _ParkedRecord) is parked]
            ids, is_named = error.records or [record.id for record in mixed], bool(error.records)
            self._caution.failed(
                ids,
                error.reason,
                certain=is_named,
                explained=error.explained,
                unclear=error.unclear,
                parked=parked,
            )
            if self._failure is None:  # so this ends the term
                self._caution.topics.refused(error.topics, error.reason, at=_now())
        self._failure = self._failure or error
        self.stop()

    async def _purge(self) -> None:
        while True:
            batch, self._delivered = self._delivered, []
            if batch:
                await self._delete(batch)
            elif self._stopping.is_set() and self._in_flight.unsettled == 0:
                return
            else:
                self._settled.clear()
                await self._settled.wait()

    async def _delete(self, batch: Sequence[MarkedRecord]) -> None:
        parked = [record for record in batch if isinstance(record, _ParkedRecord)] if self._due else []
        if len(parked) < len(batch):
            ids = [record.id for record in batch if not isinstance(record, _ParkedRecord)] if parked else None
            ids = [record.id for record in batch] if ids is None else ids
            began = self._measures.now()
            age = await self._table.purge(self.view, ids)
            self._measures.took(Stage.PURGE, began)
            self._measures.waited(age, records=len(ids))
            self._caution.settled(ids, parked=False)
        if parked:
            numbers = [record.id for record in parked]
            async with self._parking:
                await self._table.unpark(self.view, numbers)
                self._parked.gone((record.topic, record.key) for record in parked)
            self._caution.settled(numbers, parked=True)
            self._releasing = True
            self._due -= set(numbers)
            report_retried(self._report, topics=Counter(record.topic for record in parked), refused={})
            if not self._due:
                self._attended.set()
        self._in_flight.forget(batch)
        self._count(Counter(record.topic for record in batch))


def _now() -> float:
    return asyncio.get_running_loop().time()
