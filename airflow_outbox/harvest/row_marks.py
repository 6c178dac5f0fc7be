"""One term of harvesting at least once: mark → publish → purge, by marks in the rows (goharvest's protocol).

Activities overlap, and none waits for a record of another's:

- *marking* claims the next records as long as the bounds leave room, and sends those whose key has nothing in flight;
- *settling* takes the log's reports and sends the next record of each delivered one's key;
- *purging* deletes what was delivered: all that has come together since its last statement, in one statement;
- *accounting* keeps the fence row's heartbeat and counter, once a second;
  it learns there what operators ask for: a pause, in which nothing is marked, or that another member leads;
- *watching* asks once a second whether Postgres answers and the fence is still this view's.

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
import contextlib
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.ports import Delivery, Log, Table
from airflow_outbox.harvest.protocol.in_flight import InFlight
from airflow_outbox.fence import Request
from airflow_outbox.table import MarkedRecord

_SLOWEST_POLL = 10  # in poll intervals
_ACCOUNTING_INTERVAL = 1.0
_WATCHING_INTERVAL = 1.0


class RowMarksTerm:
    """Harvests under one view, as operators `request`. It adds what it has purged, by topic, to `published`."""

    def __init__(
        self, *, view: UUID, request: Request, table: Table, log: Log, limits: Limits, published: Counter[str]
    ) -> None:
        self.view = view
        self.request = request
        self._table = table
        self._log = log
        self._limits = limits
        self._published = published
        self._in_flight = InFlight(max_records=limits.max_in_flight_records, max_bytes=limits.max_in_flight_bytes)
        self._delivered: list[MarkedRecord] = []
        self._undelivered: list[MarkedRecord] = []
        self._failure: OutboxError | None = None
        self._purged = 0
        self._stopping = asyncio.Event()
        self._finished = asyncio.Event()
        self._settled = asyncio.Event()
        self._room_made = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Records marked and not yet purged."""
        return self._in_flight.records

    def stop(self) -> None:
        """End soon: send nothing more, but settle and purge what was sent."""
        self._in_flight.stop()
        for event in (self._stopping, self._settled, self._room_made):
            event.set()

    async def run(self) -> None:
        """Harvest until stopped. Raises FencedError, PublishError, PostgresError."""
        harvesting = [asyncio.create_task(activity) for activity in (self._mark(), self._purge())]
        accompanying = [asyncio.create_task(activity) for activity in (self._account(), self._watch())]
        running = {asyncio.create_task(self._settle()), *harvesting, *accompanying}

        async def ended(tasks: list[asyncio.Task[None]]) -> None:
            while any(task in running for task in tasks):
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                running.difference_update(done)
                for task in done:
                    task.result()

        try:
            # A statement that is under way is waited for: one that is given up takes its connection along.
            await ended(harvesting)
            self._finished.set()
            await ended(accompanying)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
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
                self.view, max_records=min(records, self._limits.mark_records), max_bytes=size
            )
            for record in self._in_flight.admit(marked):
                self._log.send(record)
            if marked:
                idle = 1
            else:
                await self._pause(idle * self._limits.poll_interval, self._stopping)
                idle = min(2 * idle, _SLOWEST_POLL)

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
        self._purged += len(batch)
        self._published.update(record.topic for record in batch)
        self._room_made.set()

    async def _account(self) -> None:
        while True:
            await self._pause(_ACCOUNTING_INTERVAL, self._finished)
            finished = self._finished.is_set()
            request = await self._tell()
            if finished:
                return
            self.request = request
            if request.handover:
                self.stop()
            if not request.paused:
                self._room_made.set()

    async def _tell(self) -> Request:
        purged, self._purged = self._purged, 0
        rate = purged / _ACCOUNTING_INTERVAL
        return await self._table.heartbeat(self.view, published=purged, in_flight=self.in_flight, rate=rate)

    async def _watch(self) -> None:
        while not self._finished.is_set():
            await self._pause(_WATCHING_INTERVAL, self._finished)
            await self._table.require_fence(self.view)

    @staticmethod
    async def _pause(seconds: float, ending: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), seconds)
