"""The ports `Log` and `TransactionalLog` over the simulated Kafka."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulation.kafka import LEDGER, PARTITIONS, Broker, Concurrent, Fenced, Place
from simulation.network import Answer, Link, Network

from airflow_outbox.errors import HistoryError, KafkaError, PublishError, RecordsRefusedError
from airflow_outbox.harvest.ports import Delivery
from airflow_outbox.harvest.protocol.ledger import Extent, Ledger, LedgerRecord
from airflow_outbox.harvest.protocol.parking import Refusal
from airflow_outbox.pages import OutboxRow
from airflow_outbox.table import MarkedRecord

MAX_VALUE_SIZE = 1_000_000
TRANSACTIONAL_ID = "outbox"
_PATIENCE = 6.0
_RETRY_INTERVAL = 0.05


def place_of(topic: str, key: str | bytes, partition: int | None) -> Place:
    text = key if isinstance(key, bytes) else key.encode()
    return topic, zlib.crc32(text) % PARTITIONS if partition is None else partition


def kafka_link(network: Network) -> Link:
    """A process' way to Kafka."""
    return Link(network, KafkaError, patience=_PATIENCE)


class SimulatedTransactionalLog:
    """A transactional producer, and the ledger. What one call asks of the broker comes in several questions."""

    def __init__(self, broker: Broker, link: Link, transactional_id: str = TRANSACTIONAL_ID) -> None:
        self._broker = broker
        self._link = link
        self.transactional_id = transactional_id
        self._epoch = -1

    async def fence(self, transactional_id: str) -> None:
        epoch = await self._ask("fence", lambda: self._broker.initialise(transactional_id))
        if transactional_id == self.transactional_id:
            self._epoch = epoch

    async def glimpse(self, start: int) -> Ledger:
        broker = self._broker

        def effect(answer: Answer) -> None:
            partition = broker.partition(LEDGER)
            records = [(record.offset, record.key, record.value) for record in partition.committed(start)]
            answer.give((str(broker.ledger_id), partition.stable, records))

        topic_id, end, records = await self._link.ask("glimpse", effect)
        return Ledger.read(topic_id=topic_id, end=end, records=records)

    async def ledger(self, start: int) -> Ledger:
        broker = self._broker

        def effect(answer: Answer) -> None:
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
        return examined(self._broker, rows)

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        if not all(self._broker.takes(row) for row in rows):
            raise RecordsRefusedError("simulated: a record is refused", explained=True)
        places: dict[Place, list[tuple[Any, Any]]] = {}
        for row in rows:
            places.setdefault(place_of(row[1], row[2], row[6]), []).append((row[2], row))

        async def send(place: Place, records: list[tuple[Any, Any]]) -> Extent:
            half = len(records) // 2  # in two requests, so that a producer may die in between
            first = last = await self._produce("publish", place, records[: half + 1])
            last += half
            if records[half + 1 :]:
                last = await self._produce("publish", place, records[half + 1 :])
                last += len(records[half + 1 :]) - 1
            return Extent(*place, first, last, len(records))

        sending = [asyncio.create_task(send(place, records)) for place, records in places.items()]
        try:
            return await asyncio.gather(*sending)
        finally:
            for task in sending:
                task.cancel()

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        first = await self._produce("commit", LEDGER, list(records))
        await self._ask("end", lambda: self._broker.end(self.transactional_id, self._epoch, committed=True))
        return first + len(records) - 1

    async def close(self) -> None:
        """A producer that is gone leaves its transaction open, until it is fenced or the coordinator's time is up."""

    async def _produce(self, name: str, place: Place, records: list[tuple[Any, Any]]) -> int:
        offset: int = await self._ask(
            name, lambda: self._broker.produce(self.transactional_id, self._epoch, place, records)
        )
        return offset

    async def _ask(self, name: str, effect: Callable[[], Any]) -> Any:
        def answered(answer: Answer) -> None:
            try:
                answer.give(effect())
            except Concurrent:
                answer.give(Concurrent)
            except Fenced:
                answer.refuse(KafkaError("simulated: the producer is fenced"))

        while (result := await self._link.ask(name, answered)) is Concurrent:
            await asyncio.sleep(_RETRY_INTERVAL)
        return result


def examined(broker: Broker, rows: Sequence[Any]) -> dict[int, Refusal]:
    """What a look at records tells, by id."""
    return {row[0]: refusal for row in rows if (refusal := broker.refusal(row)) is not None}


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
