"""One term of harvesting at least once: mark → publish → purge, by marks in the rows (goharvest's protocol).

Activities overlap, and none waits for a record of another's:

- *marking* claims the next records as long as the bounds leave room, and sends those whose key has nothing in flight;
- *settling* takes the log's reports and sends the next record of each delivered one's key;
- *purging* deletes what was delivered: all that has come together since its last statement, in one statement.

A term ends

- by being asked to: it sends nothing more, waits for what it has sent, and purges that;
- by the fence: FencedError, at once;
- by a statement whose outcome is unknown: PostgresError, at once;
- by a record that was not delivered, or perhaps: what was sent settles, what was delivered is purged, what failed is
  reset: PublishError.

Whoever leads next marks what is left under a new view.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from airflow_outbox.errors import OutboxError
from airflow_outbox.fence import Request
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.ports import Delivery, Log, Table
from airflow_outbox.harvest.protocol.in_flight import InFlight
from airflow_outbox.harvest.term import SLOWEST_POLL, Term
from airflow_outbox.table import MarkedRecord


class RowMarksTerm(Term):
    """Harvests at least once. When `draining`, only what others have marked, and it ends when that is purged."""

    def __init__(
        self,
        *,
        view: UUID,
        request: Request,
        table: Table,
        log: Log,
        limits: Limits,
        published: Counter[str],
        draining: bool = False,
    ) -> None:
        super().__init__(view=view, request=request, table=table, limits=limits, published=published)
        self._log = log
        self._draining = draining
        self._in_flight = InFlight(max_records=limits.max_in_flight_records, max_bytes=limits.max_in_flight_bytes)
        self._delivered: list[MarkedRecord] = []
        self._undelivered: list[MarkedRecord] = []
        self._failure: OutboxError | None = None
        self._settled = asyncio.Event()

    @property
    def in_flight(self) -> int:
        return self._in_flight.records

    def stop(self) -> None:
        self._in_flight.stop()
        for event in (self._stopping, self._settled, self._room_made):
            event.set()

    async def run(self) -> None:
        await self._run([self._mark(), self._purge()], serving=[self._settle()])
        if self._failure is not None:
            await self._table.reset(self.view, [record.id for record in self._undelivered])
            raise self._failure

    async def _mark(self) -> None:
        idle = 1
        while not self._stopping.is_set():
            self._room_made.clear()
            records, size = self._in_flight.room
            if self.request.paused or records <= 0 or size <= 0:
                await self._room_made.wait()
                continue
            marked = await self._table.mark(
                self.view,
                max_records=min(records, self._limits.mark_records),
                max_bytes=size,
                only_marked=self._draining,
            )
            for record in self._in_flight.admit(marked):
                self._log.send(record)
            if marked:
                idle = 1
            elif self._draining and self.in_flight == 0:
                self.stop()
            else:
                await self._pause(idle * self._limits.poll_interval, self._stopping)
                idle = min(2 * idle, SLOWEST_POLL)

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
        await self._table.purge(self.view, [record.id for record in batch])
        self._in_flight.forget(batch)
        self._count(Counter(record.topic for record in batch))
