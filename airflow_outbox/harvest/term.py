"""The base of a term of leadership in either mode: it stops when asked, watches its fence, and writes its heartbeat and
counts into the fence row.

A term runs activities that overlap. Those that harvest end when the term is asked to stop and the records in flight are
settled. The accompanying ones end after them:

- *accounting* keeps the fence row's heartbeat and counters, once a second. It learns there what operators ask for: a
  pause, in which nothing is read, or another leader;
- *watching* asks once a second whether Postgres answers and the fence is still this view's;
- *deleting* tries again, every ten seconds, to delete published records that Postgres would not delete.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any
from uuid import UUID

from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.ports import Table
from airflow_outbox.harvest.protocol.parking import ParkedLanes
from airflow_outbox.values.fence import Flushed, LedgerPosition, OperatorRequest, Pulse

ATTENDING_INTERVAL = 1.0
_ACCOUNTING_INTERVAL = 1.0
_WATCHING_INTERVAL = 1.0
_DELETING_INTERVAL = 10.0
SLOWEST_POLL = 0.1  # seconds; ten poll intervals, where that is longer
_PROMPT_TIME = 0.025  # seconds after records have come in which more of the same stream are likely


async def pause(seconds: float, ending: asyncio.Event) -> None:
    """Wait this many seconds, or until `ending` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ending.wait()


class Term(ABC):
    """Harvests under one view, as operators `request`. `measures` counts what it publishes.

    `prepares`: nothing new is published yet, only what earlier views have begun is completed. `attaches`: it has ended
    because the cluster that is asked for is to count now.
    """

    prepares = False
    attaches = False

    def __init__(
        self, *, view: UUID, request: OperatorRequest, table: Table, limits: Limits, measures: Measures
    ) -> None:
        self.view = view
        self.request = request
        self._table = table
        self._limits = limits
        self._measures = measures
        self.published = 0  # records of this term that were published and purged
        self._purged = 0  # of them, those that no heartbeat has counted yet
        self._came_at = float("-inf")
        self._stopping = asyncio.Event()
        self._finished = asyncio.Event()
        self._room_made = asyncio.Event()

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Records claimed and not yet purged."""

    @abstractmethod
    def stop(self) -> None:
        """End soon: send nothing more, but settle and purge the sent records."""

    @abstractmethod
    async def run(self) -> None:
        """Harvest until stopped. Raises FencedError, HistoryError, KafkaError, PostgresError."""

    async def _run(
        self, harvesting: Sequence[Coroutine[Any, Any, None]], *, serving: Sequence[Coroutine[Any, Any, None]] = ()
    ) -> None:
        """Run activities until those that harvest have ended, or one fails. `serving` ones never end."""
        harvests = [asyncio.create_task(activity) for activity in harvesting]
        accompanying = [asyncio.create_task(activity) for activity in (self._account(), self._watch())]
        serves = [asyncio.create_task(activity) for activity in (self._delete_again(), *serving)]
        running = [*serves, *harvests, *accompanying]

        async def ended(tasks: list[asyncio.Task[None]]) -> None:
            while any(task in running for task in tasks):
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task in done]:
                    running.remove(task)
                    task.result()

        try:
            # Wait for a statement under way: giving it up would end its connection.
            await ended(harvests)
            self._finished.set()
            await ended(accompanying)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _came(self) -> float:
        """Note that a look has found records. Return the wait before the next look, unless that is made at once."""
        self._came_at = asyncio.get_running_loop().time()
        return self._limits.poll_interval

    @property
    def _prompt_time(self) -> float:
        """For how many more seconds records are likely to come; 0: a stream has ended, or none has begun.

        A rest in which no look has room counts as none.
        """
        rest = self._came_at + _PROMPT_TIME - asyncio.get_running_loop().time()
        return rest if rest >= self._limits.poll_interval else 0.0

    async def _idle(self, interval: float) -> float:
        """Wait this long before the next look for records. Return the wait after that, if it finds none."""
        await pause(interval, self._stopping)
        if self._prompt_time:
            return self._limits.poll_interval
        return min(2 * interval, max(SLOWEST_POLL, 10 * self._limits.poll_interval))

    def _count(self, topics: Counter[str]) -> None:
        """Count records that were published and purged."""
        self._purged += topics.total()
        self.published += topics.total()
        self._measures.publishes(topics)
        self._room_made.set()

    async def _account(self) -> None:
        while True:
            await pause(_ACCOUNTING_INTERVAL, self._finished)
            finished = self._finished.is_set()
            pulse = await self._tell()
            if finished:
                return
            self.request = pulse.request
            if self._is_over(pulse.request):
                self.stop()
            if not pulse.request.paused:
                self._room_made.set()

    def _is_over(self, request: OperatorRequest) -> bool:
        """Whether operators ask for something that the term can't go on with."""
        return request.handover

    async def _tell(self) -> Pulse:
        purged, self._purged = self._purged, 0
        witness, flushed = self._to_witness(), self._to_account()
        pulse = await self._table.heartbeat(
            self.view,
            published=purged,
            in_flight=self.in_flight,
            rate=purged / _ACCOUNTING_INTERVAL,
            witness=witness,
            flushed=flushed,
        )
        self._told(pulse, witness, flushed)
        return pulse

    def _to_witness(self) -> Mapping[str, LedgerPosition]:
        """The position in each cluster's ledger for Postgres to record; empty if none is new."""
        return {}

    def _to_account(self) -> Flushed | None:
        """How far everything is out, for Postgres to record and announce, if it is new."""
        return None

    def _told(self, pulse: Pulse, witness: Mapping[str, LedgerPosition], flushed: Flushed | None) -> None:  # noqa: B027
        """Postgres has durably recorded `witness` and `flushed`. Not every protocol has them."""

    async def _ask_which_wait(self, rows: Sequence[tuple[Any, ...]], parked: ParkedLanes) -> None:
        """Ask Postgres which lanes of these rows wait, before they are divided. Costs a statement if some of their
        topics have very many parked lanes, else nothing.
        """
        parked.begin_asking()
        while lanes := parked.to_ask(rows):
            parked.answered(lanes, await self._table.waiting_lanes(lanes, leaving=parked.leaving))

    async def _delete_again(self) -> None:
        while True:
            await asyncio.sleep(_DELETING_INTERVAL)
            await self._table.delete_again(self.view)

    async def _watch(self) -> None:
        while not self._finished.is_set():
            await pause(_WATCHING_INTERVAL, self._finished)
            await self._table.require_fence(self.view)
