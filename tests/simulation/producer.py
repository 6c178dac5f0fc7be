"""A transactional producer of the simulated Kafka."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from simulation.kafka import LEDGER, PARTITIONS, Broker, Concurrent, Fenced, NoLeader, NotInTransaction
from simulation.network import Answer, Link

from airflow_outbox.errors import KafkaError, StuckTransactionsError
from airflow_outbox.harvest.protocol.extents import ExtentsToWrite
from airflow_outbox.harvest.protocol.ledger import Extent, LedgerRecord
from airflow_outbox.harvest.protocol.producer_state import JITTER, Call, Transaction
from airflow_outbox.values.extents import TopicAndPartition
from airflow_outbox.values.pages import KEY, PARTITION, TOPIC, OutboxRow

PATIENCE = 6.0
STUCK_AFTER = 2.0
_REQUEST_TIME = 2.0
_RETRY_INTERVAL = 0.05
_BACKOFF = 0.5


def place_of(topic: str, key: str | bytes, partition: int | None, *, partitions: int = PARTITIONS) -> TopicAndPartition:
    text = key if isinstance(key, bytes) else key.encode()
    return topic, zlib.crc32(text) % partitions if partition is None else partition


class Answered(KafkaError):
    """A broker's refusals; it is not asked again."""


class SimulatedProducer:
    """A transactional producer. One call to it asks the broker several questions.

    As librdkafka does, it asks again by itself, under the same epoch, when no answer comes, and tells nobody; the first
    question may still arrive.
    """

    gap: ClassVar = _BACKOFF * (1 - JITTER)
    """How long it waits before it asks again, at least, in seconds."""

    def __init__(
        self, broker: Broker, link: Link, transactional_id: str, *, ledger: TopicAndPartition = LEDGER
    ) -> None:
        self._broker = broker
        self._ledger = ledger
        self._link = link
        self.transactional_id = transactional_id
        self.epoch = -1
        self._sequences: Counter[TopicAndPartition] = Counter()
        self._added: set[TopicAndPartition] = set()
        self._transaction = Transaction(gap=self.gap)
        self._is_asked_to_commit = False
        self._written = 0

    @property
    def needs_epoch(self) -> bool:
        return self._transaction.needs_epoch

    @property
    def is_uncertain(self) -> bool:
        return self._is_asked_to_commit or self._transaction.is_uncertain

    async def fence(self, *, stuck_after: float = STUCK_AFTER) -> None:
        self._transaction.begins(Call.FENCE)
        self.epoch = await self._ask(
            "fence",
            lambda: self._broker.initialise(self.transactional_id),
            stuck=StuckTransactionsError([self.transactional_id]),
            patience=stuck_after,
        )
        self._transaction.succeeded(Call.FENCE, seconds=0)

    async def renew(self) -> None:
        self._sequences.clear()
        self._transaction = Transaction(gap=self.gap)
        await self.fence()

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        with self._timed(Call.PUBLISH):
            if (refused := self._broker.refused_with(rows)) is not None:
                raise refused
            places: dict[TopicAndPartition, list[tuple[Any, Any]]] = {}
            for row, chosen in zip(rows, partitions or [row[PARTITION] for row in rows], strict=True):
                place = place_of(row[TOPIC], row[KEY], chosen, partitions=self._broker.partitions_of_topics)
                places.setdefault(place, []).append((row[KEY], row))
            await self._add(places)
            sending = [asyncio.create_task(self._send(place, records)) for place, records in places.items()]
            try:
                return await asyncio.gather(*sending)
            finally:
                for task in sending:
                    task.cancel()

    async def write(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> None:
        with self._timed(Call.PUBLISH):
            self._written = await self._write(records)

    async def commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> int:
        """As in a thread: it goes on when its caller is cancelled."""
        self._is_asked_to_commit = True
        committing = asyncio.create_task(self._commit(records))
        committing.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            offset = await asyncio.shield(committing)
        except KafkaError:
            self._is_asked_to_commit = False
            raise
        self._is_asked_to_commit = False
        return offset

    async def _commit(self, records: Sequence[LedgerRecord]) -> int:
        epoch = self.epoch
        with self._timed(Call.COMMIT):
            last = await self._write(records) if records else self._written
            await self._ask("end", lambda: self._broker.end(self.transactional_id, epoch, committed=True))
            self._added.clear()
        return last

    async def _write(self, records: Sequence[LedgerRecord]) -> int:
        await self._add([self._ledger])
        return await self._produce("commit", self._ledger, list(records)) + len(records) - 1

    def close(self) -> None:
        """A producer that is gone leaves its transaction open, until it is fenced or the coordinator's time is up."""

    async def _send(self, place: TopicAndPartition, records: list[tuple[Any, Any]]) -> Extent:
        half = len(records) // 2  # in two requests, so that a producer may die in between
        first = last = await self._produce("publish", place, records[: half + 1])
        last += half
        if records[half + 1 :]:
            last = await self._produce("publish", place, records[half + 1 :])
            last += len(records[half + 1 :]) - 1
        return Extent(*place, first, last, len(records))

    async def _add(self, places: Collection[TopicAndPartition]) -> None:
        if new := [place for place in places if place not in self._added]:
            epoch = self.epoch
            await self._ask("add", lambda: self._broker.add(self.transactional_id, epoch, new))
            self._added.update(new)

    async def _produce(self, name: str, place: TopicAndPartition, records: list[tuple[Any, Any]]) -> int:
        epoch, sequence = self.epoch, self._sequences[place]
        self._sequences[place] += len(records)
        try:
            offset: int = await self._ask(
                name,
                lambda: self._broker.produce(self.transactional_id, epoch, place, records, sequence=sequence),
            )
        except KafkaError:
            if place in self._broker.away:
                self._broker.unanswered.add(place[0])
            raise
        return offset

    @contextmanager
    def _timed(self, call: Call) -> Iterator[None]:
        """Begin a transaction unless one is open, make a call in it, and give the producer up if it fails."""
        if not self._transaction.is_open:
            self._transaction.begins(Call.BEGIN)
            self._transaction.succeeded(Call.BEGIN, seconds=0)
        started = asyncio.get_running_loop().time()
        self._transaction.begins(call)
        try:
            yield
        except KafkaError as error:
            self._transaction.given_up(call, str(error))
            raise
        self._transaction.succeeded(call, seconds=asyncio.get_running_loop().time() - started)

    async def _ask(
        self, name: str, effect: Callable[[], Any], *, stuck: KafkaError | None = None, patience: float = PATIENCE
    ) -> Any:
        """Ask until there is an answer. `stuck` is what to raise when the transaction before does not end so long."""

        def answered(answer: Answer) -> None:
            try:
                answer.give(effect())
            except Concurrent:
                answer.give(Concurrent)
            except NoLeader:
                return
            except Fenced:
                answer.refuse(Answered("simulated: the producer is fenced"))
            except NotInTransaction:
                answer.refuse(Answered("simulated: the partition is not in the transaction"))

        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        stuck_at = loop.time() + patience
        while True:
            try:
                result = await self._link.ask(name, answered, patience=_REQUEST_TIME)
            except Answered:
                raise
            except KafkaError:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(_BACKOFF * (1 + JITTER * (2 * self._link.network.random.random() - 1)))
                continue
            if result is not Concurrent:
                return result
            if loop.time() > stuck_at:
                raise stuck or KafkaError(f"simulated: the transaction before does not end ({name})")
            await asyncio.sleep(_RETRY_INTERVAL)
