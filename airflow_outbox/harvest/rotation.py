"""The part of a transactional log that handles several producers: they take turns (`protocol.turns`).

While one producer commits, the next one sends. A producer that needs a new epoch gets it at once, in the background,
and its next transaction waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from airflow_outbox.errors import KafkaError, StuckTransactionsError
from airflow_outbox.harvest.protocol.extents import ExtentsToWrite
from airflow_outbox.harvest.protocol.ledger import Extent, LedgerRecord
from airflow_outbox.harvest.protocol.turns import Turns
from airflow_outbox.values.extents import TopicAndPartition
from airflow_outbox.values.pages import OutboxRow

_ASKING_INTERVAL = 0.002
_LONGEST_ASKING_INTERVAL = 0.1
_ASKING_TIME = 1.0
"""How long Kafka is asked whether commits are readable, in seconds. After that, other applications' open transactions
must be holding its stable offsets back. Then initialising producers again shows the markers."""


class RotatingProducer(Protocol):
    """A transactional producer. Any method may raise KafkaError."""

    transactional_id: str

    @property
    def needs_epoch(self) -> bool:
        """Whether a request of the last transaction may have been sent twice: `renew` before the next one."""

    @property
    def is_uncertain(self) -> bool:
        """Whether a commit was asked for and is not known to be acknowledged."""

    async def fence(self) -> None:
        """End the transaction of every earlier producer of the id, and keep them from new ones."""

    async def renew(self) -> None:
        """Replace a producer that has no transaction open by one of a new epoch."""

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        """Send rows, into these partitions if they are given, in the open transaction, or a new one, until Kafka has
        them. Return where they are.
        """

    async def write(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> None:
        """Write records into the ledger, and `extents`, if any, in the open transaction, or a new one."""

    async def commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> int:
        """Write these, too, and commit. Return the ledger's last offset."""

    def close(self) -> None:
        """Give up open transactions, and end. Waits for nothing."""


def require_fenced(outcomes: Iterable[BaseException | None]) -> None:
    """Raise the error of fencing producers; StuckTransactionsError, for all of them, if there is no other."""
    errors = [outcome for outcome in outcomes if outcome is not None]
    stuck: list[str] = []
    for error in errors:
        if not isinstance(error, StuckTransactionsError):
            raise error
        stuck += error.transactional_ids
    if stuck:
        raise StuckTransactionsError(stuck)


class Rotation:
    """Producers that take turns: the part of the port `TransactionalLog` that sends."""

    def __init__(
        self,
        producers: Sequence[RotatingProducer],
        *,
        stable_offsets: Callable[[Collection[TopicAndPartition]], Awaitable[Mapping[TopicAndPartition, int]]],
    ) -> None:
        """`stable_offsets` asks Kafka how far consumers that read committed can get."""
        self._producers = producers
        self._stable_offsets = stable_offsets
        self._turns = Turns(len(producers))
        self._free = [asyncio.Lock() for _ in producers]
        self._renewals: dict[int, asyncio.Task[None]] = {}
        self._ends: dict[int, dict[TopicAndPartition, int]] = {}  # the last offsets of uncommitted transactions
        self._commits = 0

    @property
    def transactional_ids(self) -> Sequence[str]:
        return [producer.transactional_id for producer in self._producers]

    @property
    def uncertain(self) -> Sequence[str]:
        """The ids for which it is unknown whether the last transaction is committed."""
        return [producer.transactional_id for producer in self._producers if producer.is_uncertain]

    @property
    def readable(self) -> int:
        return self._turns.readable

    async def fence(self) -> None:
        fencing = [producer.fence() for producer in self._producers]
        require_fenced(await asyncio.gather(*fencing, return_exceptions=True))

    async def begin(self) -> bool:
        turn = self._turns.begin()
        await self._free[turn].acquire()
        self._ends[self._turns.begun] = {}
        renewal = self._renewals.pop(turn, None)
        if renewal is None:
            return False
        await renewal
        return True

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        number = self._turns.begun
        extents = await self._producers[self._turns.turn(number)].publish(rows, partitions)
        self._turns.taken(number)
        self._ends[number].update({(extent.topic, extent.partition): extent.last for extent in extents})
        return extents

    async def write(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> None:
        number = self._commits + 1
        await self._producers[self._turns.turn(number)].write(records, extents)
        self._turns.taken(number)

    async def commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> int:
        self._commits += 1
        number, turn = self._commits, self._turns.turn(self._commits)
        offset = await self._producers[turn].commit(records, extents)
        self._turns.taken(number)  # if nothing was published, the ledger's records tell
        self._turns.committed(self._ends.pop(number))
        if self._producers[turn].needs_epoch:
            self._renew(turn)
        self._free[turn].release()
        return offset

    async def await_readable(self) -> None:
        loop, interval = asyncio.get_running_loop(), _ASKING_INTERVAL
        deadline = loop.time() + _ASKING_TIME
        while places := self._turns.waiting:
            if loop.time() > deadline:
                return await self._renew_unproven()
            with contextlib.suppress(KafkaError):  # initialising a producer will report it
                self._turns.stable(await self._stable_offsets(places))
            if self._turns.waiting:
                await asyncio.sleep(interval)
                interval = min(2 * interval, _LONGEST_ASKING_INTERVAL)

    async def are_readable(self, extents: Collection[Extent]) -> bool:
        stable = await self._stable_offsets({(extent.topic, extent.partition) for extent in extents})
        return all(stable.get((extent.topic, extent.partition), 0) > extent.last for extent in extents)

    async def close(self) -> None:
        for renewal in self._renewals.values():
            renewal.cancel()
        for producer in self._producers:
            producer.close()

    def _renew(self, turn: int) -> None:
        async def renew() -> None:
            await self._producers[turn].renew()
            self._turns.initialised(turn)  # at once: this proves nothing of the next commit

        renewal = self._renewals[turn] = asyncio.create_task(renew())
        renewal.add_done_callback(lambda task: task.cancelled() or task.exception())  # `begin` raises it

    async def _renew_unproven(self) -> None:
        """Initialise free producers with unproven commits again. The next records of the others will tell."""
        turns = [turn for turn, lock in enumerate(self._free) if self._turns.is_unproven(turn) and not lock.locked()]
        for turn in turns:
            if turn not in self._renewals:
                self._renew(turn)
        await asyncio.gather(*[self._renewals[turn] for turn in turns])
