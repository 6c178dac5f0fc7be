"""The ports `Log` and `TransactionalLog` over the simulated Kafka."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, ClassVar

from simulation.kafka import LEDGER, PARTITIONS, Broker, Concurrent, Fenced, NoLeader, NotInTransaction, Place
from simulation.network import Answer, Link, Network

from airflow_outbox.errors import HistoryError, KafkaError, PublishError, RecordsRefusedError, StuckTransactionsError
from airflow_outbox.harvest.kafka.fencing import Fencing, StuckIds
from airflow_outbox.harvest.ports import Delivery
from airflow_outbox.harvest.protocol.ledger import Extent, Ledger, LedgerRecord
from airflow_outbox.harvest.protocol.producer_state import JITTER, Call, Transaction
from airflow_outbox.harvest.rotation import Rotation
from airflow_outbox.values.pages import OutboxRow
from airflow_outbox.values.records import MarkedRecord
from airflow_outbox.values.refusals import Refusal

MAX_VALUE_SIZE = 1_000_000
TRANSACTIONAL_ID = "outbox"
PRODUCERS = 2
_PATIENCE = 6.0
_REQUEST_TIME = 2.0
_RETRY_INTERVAL = 0.05
_BACKOFF = 0.5
_STUCK_AFTER = 2.0
_STUCK_AT_ONCE = 0.3


def place_of(topic: str, key: str | bytes, partition: int | None) -> Place:
    text = key if isinstance(key, bytes) else key.encode()
    return topic, zlib.crc32(text) % PARTITIONS if partition is None else partition


def kafka_link(network: Network) -> Link:
    """A process' way to Kafka."""
    return Link(network, KafkaError, patience=_PATIENCE)


class Answered(KafkaError):
    """What a broker has refused; it is not asked again."""


class SimulatedProducer:
    """A transactional producer. What one call asks of the broker comes in several questions.

    As librdkafka does, it asks again by itself, under the same epoch, when no answer comes, and tells nobody; the first
    question may still arrive.
    """

    gap: ClassVar = _BACKOFF * (1 - JITTER)
    """How long it waits before it asks again, at least, in seconds."""

    def __init__(self, broker: Broker, link: Link, transactional_id: str) -> None:
        self._broker = broker
        self._link = link
        self.transactional_id = transactional_id
        self.epoch = -1
        self._sequences: Counter[Place] = Counter()
        self._added: set[Place] = set()
        self._transaction = Transaction(gap=self.gap)
        self._is_asked_to_commit = False

    @property
    def needs_epoch(self) -> bool:
        return self._transaction.needs_epoch

    @property
    def is_uncertain(self) -> bool:
        return self._is_asked_to_commit or self._transaction.is_uncertain

    async def fence(self, *, stuck_after: float = _STUCK_AFTER) -> None:
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

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        with self._timed(Call.PUBLISH):
            if not all(self._broker.takes(row) for row in rows):
                raise RecordsRefusedError("simulated: a record is refused", explained=True)
            places: dict[Place, list[tuple[Any, Any]]] = {}
            for row in rows:
                places.setdefault(place_of(row[1], row[2], row[6]), []).append((row[2], row))
            await self._add(places)
            sending = [asyncio.create_task(self._send(place, records)) for place, records in places.items()]
            try:
                return await asyncio.gather(*sending)
            finally:
                for task in sending:
                    task.cancel()

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
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
            await self._add([LEDGER])
            first = await self._produce("commit", LEDGER, list(records))
            await self._ask("end", lambda: self._broker.end(self.transactional_id, epoch, committed=True))
            self._added.clear()
        return first + len(records) - 1

    def close(self) -> None:
        """A producer that is gone leaves its transaction open, until it is fenced or the coordinator's time is up."""

    async def _send(self, place: Place, records: list[tuple[Any, Any]]) -> Extent:
        half = len(records) // 2  # in two requests, so that a producer may die in between
        first = last = await self._produce("publish", place, records[: half + 1])
        last += half
        if records[half + 1 :]:
            last = await self._produce("publish", place, records[half + 1 :])
            last += len(records[half + 1 :]) - 1
        return Extent(*place, first, last, len(records))

    async def _add(self, places: Collection[Place]) -> None:
        if new := set(places) - self._added:
            epoch = self.epoch
            await self._ask("add", lambda: self._broker.add(self.transactional_id, epoch, new))
            self._added |= new

    async def _produce(self, name: str, place: Place, records: list[tuple[Any, Any]]) -> int:
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
        self, name: str, effect: Callable[[], Any], *, stuck: KafkaError | None = None, patience: float = _PATIENCE
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
        deadline = loop.time() + _PATIENCE
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


class SimulatedTransactionalLog:
    """Transactional producers, which take turns as the real ones do, and the ledger."""

    producer: ClassVar[type[SimulatedProducer]] = SimulatedProducer

    def __init__(
        self,
        broker: Broker,
        link: Link,
        transactional_id: str = TRANSACTIONAL_ID,
        *,
        producers: int = PRODUCERS,
        stuck: StuckIds | None = None,
    ) -> None:
        self._broker = broker
        self._link = link
        stuck = stuck or StuckIds()
        self.producers = [self.producer(broker, link, name) for name in stuck.free(transactional_id, producers)]
        self.rotation = Rotation(self.producers, stable_offsets=self._stable_offsets)
        self._fencing = Fencing(self.rotation, stuck, self._fence_one)

    @property
    def transactional_ids(self) -> Sequence[str]:
        return [*self.rotation.transactional_ids, *self.unfenced]

    @property
    def readable(self) -> int:
        return self.rotation.readable

    @property
    def unfenced(self) -> Collection[str]:
        return self._fencing.unfenced

    async def fence_rest(self) -> None:
        await self._fencing.fence_rest()

    async def are_readable(self, extents: Collection[Extent]) -> bool:
        return await self.rotation.are_readable(extents)

    async def fence(self, others: Collection[str] = ()) -> None:
        await self._fencing.fence(others)

    async def _fence_one(self, transactional_id: str, patient: bool) -> None:
        after = _STUCK_AFTER if patient else _STUCK_AT_ONCE
        await SimulatedProducer(self._broker, self._link, transactional_id).fence(stuck_after=after)

    async def glimpse(self, start: int) -> Ledger:
        broker = self._broker

        def effect(answer: Answer) -> None:
            if LEDGER in broker.away:
                return
            partition = broker.partition(LEDGER)
            records = [(record.offset, record.key, record.value) for record in partition.committed(start)]
            answer.give((str(broker.ledger_id), partition.stable, records))

        topic_id, end, records = await self._link.ask("glimpse", effect)
        return Ledger.read(topic_id=topic_id, end=end, records=records)

    async def ledger(self, start: int) -> Ledger:
        broker = self._broker

        def effect(answer: Answer) -> None:
            if LEDGER in broker.away:
                return
            if broker.ledger_id is None:
                answer.refuse(KafkaError("simulated: there is no ledger"))
                return
            partition, topic_id = broker.partition(LEDGER), broker.ledger_id
            end = partition.end
            if start > end:
                answer.refuse(HistoryError(f"the ledger ends at offset {end}, and {start} was in it"))
                return

            def read() -> None:
                records = [(record.offset, record.key, record.value) for record in partition.committed(start, end)]
                answer.give((topic_id, end, records))

            partition.when_stable(end, read)

        topic_id, end, records = await self._link.ask("ledger", effect)
        return Ledger.read(topic_id=topic_id, end=end, records=records)

    async def examine(self, rows: Sequence[OutboxRow], *, again: bool = False) -> Mapping[int, Refusal]:
        return examined(self._broker, rows, again=again)

    async def begin(self) -> bool:
        with self._fencing.noting_stuck():
            return await self.rotation.begin()

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        return await self.rotation.publish(rows)

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        return await self.rotation.commit(records)

    async def await_readable(self) -> None:
        with self._fencing.noting_stuck():
            await self.rotation.await_readable()

    async def close(self) -> None:
        self._fencing.close()
        await self.rotation.close()

    async def _stable_offsets(self, places: Collection[Place]) -> Mapping[Place, int]:
        offsets: Mapping[Place, int] = await self._link.ask(
            "stable offsets", lambda answer: answer.give(self._broker.stable_offsets(places))
        )
        return offsets


class ReconfiguredLog(SimulatedTransactionalLog):
    """Producers whose name, or number, was configured to be another one, or not yet."""

    number: ClassVar = count()
    settings: ClassVar = (("outbox", 2), ("renamed", 3), ("outbox", 1), ("outbox", 4))

    def __init__(self, broker: Broker, link: Link, *, stuck: StuckIds | None = None) -> None:
        name, producers = self.settings[next(self.number) % len(self.settings)]
        super().__init__(broker, link, name, producers=producers, stuck=stuck)


def examined(broker: Broker, rows: Sequence[Any], *, again: bool = False) -> dict[int, Refusal]:
    """What a look at records tells, by id."""
    return {
        row[0]: refusal
        for row in rows
        if (refusal := broker.unavailable(row, again=again) or broker.refusal(row)) is not None
    }


class SimulatedLog:
    """A producer. What it has sent may be published after it was closed; whether, nobody is told."""

    def __init__(self, broker: Broker, link: Link, *, individually: bool) -> None:
        self._broker = broker
        self._link = link
        self._individually = individually
        self._reports: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()

    async def examine(self, records: Sequence[MarkedRecord], *, again: bool = False) -> Mapping[int, Refusal]:
        return examined(self._broker, records)

    def send(self, record: MarkedRecord) -> None:
        task = asyncio.get_running_loop().create_task(self._publish(record))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def deliveries(self) -> Sequence[Delivery]:
        await self._arrived.wait()
        self._arrived.clear()
        return [self._reports.popleft() for _ in range(len(self._reports))]

    async def close(self) -> None:
        """What is on its way may still arrive."""

    async def _publish(self, record: MarkedRecord) -> None:
        self._reports.append(Delivery(record, await self._problem(record)))
        self._arrived.set()

    async def _problem(self, record: MarkedRecord) -> PublishError | None:
        """What keeps a record from being published."""
        if record.size > MAX_VALUE_SIZE:
            return RecordsRefusedError("simulated: too large", records=[record.id])
        if not self._broker.takes(record):
            records = [record.id] if self._individually else []
            return RecordsRefusedError("simulated: refused", records=records, explained=not records)
        place = place_of(record.topic, record.key, record.partition)
        try:
            await self._link.ask("send", lambda answer: answer.give(self._broker.append(place, record.key, record)))
        except KafkaError as error:
            return PublishError(f"record {record.id}: {error}")
        return None
