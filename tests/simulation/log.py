"""The ports `Log` and `TransactionalLog` over the simulated Kafka."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, ClassVar

from simulation.kafka import LEDGER, Broker, ledger_of
from simulation.network import Answer, Effect, Link, Network
from simulation.producer import PATIENCE, STUCK_AFTER, SimulatedProducer, place_of

from airflow_outbox.errors import HistoryError, KafkaError, PublishError, RecordsRefusedError
from airflow_outbox.harvest.kafka.fencing import Fencing, StuckIds
from airflow_outbox.harvest.ports import Delivery
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Ledger, LedgerRecord
from airflow_outbox.harvest.rotation import Rotation
from airflow_outbox.values.extents import TopicAndPartition
from airflow_outbox.values.pages import ID, KEY, PARTITION, TOPIC, OutboxRow
from airflow_outbox.values.records import MarkedRecord
from airflow_outbox.values.refusals import Refusal

MAX_VALUE_SIZE = 1_000_000
TRANSACTIONAL_ID = "outbox"
PRODUCERS = 2
_STUCK_AT_ONCE = 0.3


class _KafkaLink(Link):
    def __init__(self, network: Network, broker: Broker) -> None:
        super().__init__(network, KafkaError, patience=PATIENCE)
        self._broker = broker

    async def ask(self, name: str, effect: Effect, *, patience: float | None = None) -> Any:
        def answered(answer: Answer) -> None:
            if self._broker.is_up:
                effect(answer)

        return await super().ask(name, answered, patience=patience)


def kafka_link(network: Network, broker: Broker | None = None) -> Link:
    """A process' way to Kafka, or to a cluster that may be down."""
    return Link(network, KafkaError, patience=PATIENCE) if broker is None else _KafkaLink(network, broker)


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
        shard: int = 0,
    ) -> None:
        self._broker = broker
        self._link = link
        self._place = ledger_of(shard)
        stuck = stuck or StuckIds()
        name_of_shard = f"{transactional_id}.{shard}" if shard else transactional_id
        self.producers = [self._new_producer(name) for name in stuck.free(name_of_shard, producers)]
        self.rotation = Rotation(self.producers, stable_offsets=self._stable_offsets)
        self._fencing = Fencing(self.rotation, stuck, self._fence_one)

    def _new_producer(self, name: str) -> SimulatedProducer:
        if self._place == LEDGER:
            return self.producer(self._broker, self._link, name)
        return self.producer(self._broker, self._link, name, ledger=self._place)

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
        after = STUCK_AFTER if patient else _STUCK_AT_ONCE
        await SimulatedProducer(self._broker, self._link, transactional_id).fence(stuck_after=after)

    async def glimpse(self, start: int) -> Ledger:
        broker = self._broker

        def effect(answer: Answer) -> None:
            if self._place in broker.away:
                return
            partition = broker.partition(self._place)
            records = [(record.offset, record.key, record.value) for record in partition.committed(start)]
            answer.give((str(broker.ledger_id), partition.stable, records))

        topic_id, end, records = await self._link.ask("glimpse", effect)
        return Ledger.read(topic_id=topic_id, end=end, records=records)

    async def ledger(self, start: int) -> Ledger:
        broker = self._broker

        def effect(answer: Answer) -> None:
            if self._place in broker.away:
                return
            if broker.ledger_id is None:
                answer.refuse(KafkaError("simulated: there is no ledger"))
                return
            partition, topic_id = broker.partition(self._place), broker.ledger_id
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

    def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        return dict.fromkeys(topics, self._broker.partitions_of_topics)

    def passes(self, rows: Sequence[OutboxRow]) -> bool:
        return not examined(self._broker, rows)

    def passes_too(self, topics: Set[str], *, largest: int) -> bool:
        return False  # what a broker refuses differs from record to record

    def choose_partitions(self, rows: Sequence[OutboxRow]) -> Sequence[int]:
        partitions = self._broker.partitions_of_topics
        return [place_of(row[TOPIC], row[KEY], row[PARTITION], partitions=partitions)[1] for row in rows]

    async def begin(self) -> bool:
        with self._fencing.noting_stuck():
            return await self.rotation.begin()

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        return await self.rotation.publish(rows, partitions)

    async def write(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> None:
        await self.rotation.write(records)

    async def commit(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> int:
        return await self.rotation.commit(records)

    async def await_readable(self) -> None:
        with self._fencing.noting_stuck():
            await self.rotation.await_readable()

    async def close(self) -> None:
        self._fencing.close()
        await self.rotation.close()

    async def _stable_offsets(self, places: Collection[TopicAndPartition]) -> Mapping[TopicAndPartition, int]:
        offsets: Mapping[TopicAndPartition, int] = await self._link.ask(
            "stable offsets", lambda answer: answer.give(self._broker.stable_offsets(places))
        )
        return offsets


class ReconfiguredLog(SimulatedTransactionalLog):
    """Producers whose name, or number, was configured to be another one, or not yet."""

    settings: ClassVar = (("outbox", 2), ("renamed", 3), ("outbox", 1), ("outbox", 4))

    def __init__(self, broker: Broker, link: Link, *, stuck: StuckIds | None = None) -> None:
        name, producers = self.settings[next(broker.opened) % len(self.settings)]
        super().__init__(broker, link, name, producers=producers, stuck=stuck)


def examined(broker: Broker, rows: Sequence[Any], *, again: bool = False) -> dict[int, Refusal]:
    """The result of a look at records, by id."""
    return {
        row[ID]: refusal
        for row in rows
        if (refusal := broker.unavailable(row, again=again) or broker.refusal(row)) is not None
    }


class SimulatedLog:
    """A producer. Records that it has sent may be published after it was closed; nobody is told whether."""

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
        """Records on their way may still arrive."""

    async def _publish(self, record: MarkedRecord) -> None:
        self._reports.append(Delivery(record, await self._problem(record)))
        self._arrived.set()

    async def _problem(self, record: MarkedRecord) -> PublishError | None:
        """The reason why a record can't be published."""
        if record.size > MAX_VALUE_SIZE:
            return RecordsRefusedError("simulated: too large", records=[record.id], topics=[record.topic])
        if (refused := self._broker.refused_with([record])) is not None:
            if self._individually:
                refused.records, refused.explained = [record.id], False
            return refused
        place = place_of(record.topic, record.key, record.partition)
        try:
            await self._link.ask("send", lambda answer: answer.give(self._broker.append(place, record.key, record)))
        except KafkaError as error:
            return PublishError(f"record {record.id}: {error}")
        return None
