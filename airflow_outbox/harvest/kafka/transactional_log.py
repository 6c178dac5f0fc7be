"""The port `TransactionalLog` over confluent-kafka: producers that take turns, and the ledger beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Self

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.extents_writer import ExtentsFailures, ExtentsWriter
from airflow_outbox.harvest.kafka.fencing import Fencing, StuckIds
from airflow_outbox.harvest.kafka.ledger_reader import LedgerReader
from airflow_outbox.harvest.kafka.look_ups import LookUps
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.partitioner import Placing
from airflow_outbox.harvest.kafka.producer import producer_settings
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.kafka.transactional_client import CALLS_UNTIL_STUCK, fence_producer
from airflow_outbox.harvest.kafka.transactional_producer import TransactionalProducer
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Ledger, LedgerRecord
from airflow_outbox.harvest.protocol.same_topics import SameTopics
from airflow_outbox.harvest.rotation import Rotation
from airflow_outbox.harvest.worker_thread import Watchdog, Worker
from airflow_outbox.values.extents import TopicAndPartition
from airflow_outbox.values.pages import TOPIC, OutboxRow
from airflow_outbox.values.refusals import Refusal


def transactional_ids(
    config: HarvestConfig, names: KafkaNames, *, shard: int, stuck: StuckIds | None = None
) -> list[str]:
    """Return the ids of a shard's producers: the first that have no `stuck` transaction."""
    return (stuck or StuckIds()).free(f"{names.transactional_id}.{shard}", config.limits.transactional_ids)


def fence_producers(config: HarvestConfig, names: KafkaNames, recorded: Collection[str], *, shard: int) -> None:
    """Fence a shard's producers: those of the configuration, and those that the fence row records.

    Raises KafkaError.
    """
    for transactional_id in {*transactional_ids(config, names, shard=shard), *recorded}:
        fence_producer(config, transactional_id)


class KafkaTransactionalLog:
    """Publishes the batches of one term."""

    def __init__(
        self,
        config: HarvestConfig,
        names: KafkaNames,
        shard: int,
        book: TopicCache,
        on_throttled: Callable[[float], object],
        stuck: StuckIds,
        failures: ExtentsFailures,
        watchdog: Watchdog | None,
    ) -> None:
        """With tokens this waits for one: use `open`."""
        self._book = book
        self._config = config
        self._names = names
        self._shard = shard
        ids = transactional_ids(config, names, shard=shard, stuck=stuck)
        self._same = SameTopics(len(ids))
        producers = [
            TransactionalProducer(
                config,
                transactional_id,
                ledger=(names.ledger_topic, shard),
                book=book,
                same=self._same,
                on_throttled=on_throttled,
                watchdog=watchdog,
            )
            for transactional_id in ids
        ]
        self._placing = Placing(str(producer_settings(config)["partitioner"]))
        self._rotation = Rotation(producers, stable_offsets=self._stable_offsets)
        self._fencing = Fencing(self._rotation, stuck, self._fence_one)
        self._extents = ExtentsWriter(config, names, shard, book, failures) if config.positions.enabled else None
        self._asker = Worker("outbox-ask")
        self._look_ups = LookUps(book)

    @classmethod
    async def open(
        cls,
        config: HarvestConfig,
        names: KafkaNames,
        *,
        shard: int,
        book: TopicCache,
        on_throttled: Callable[[float], object] = lambda _: None,
        stuck: StuckIds | None = None,
        failures: ExtentsFailures | None = None,
        watchdog: Watchdog | None = None,
    ) -> Self:
        """Return a new log, which connects while its caller does something else.

        - `book`: what the process knows of topics
        - `stuck`: what it knows of transactional ids
        - `failures`: what it knows of extents that were refused
        - `on_throttled`: told, in some thread, for how many seconds a quota holds a producer back
        - `watchdog`: watches the threads that publish

        Raises KafkaError for settings that Kafka's client refuses.
        """
        log = await asyncio.to_thread(
            cls, config, names, shard, book, on_throttled, stuck or StuckIds(), failures or ExtentsFailures(), watchdog
        )
        threading.Thread(target=book.connect, name="outbox-connect", daemon=True).start()
        return log

    @property
    def transactional_ids(self) -> Sequence[str]:
        return [*self._rotation.transactional_ids, *self.unfenced]

    @property
    def unfenced(self) -> Collection[str]:
        return self._fencing.unfenced

    @property
    def readable(self) -> int:
        return self._rotation.readable

    async def fence(self, others: Collection[str] = ()) -> None:
        await self._fencing.fence(others)

    async def fence_rest(self) -> None:
        await self._fencing.fence_rest()

    async def are_readable(self, extents: Collection[Extent]) -> bool:
        return await self._rotation.are_readable(extents)

    async def _fence_one(self, transactional_id: str, patient: bool) -> None:
        calls = CALLS_UNTIL_STUCK if patient else 1
        worker = Worker("outbox-fence")
        try:
            await worker.call(fence_producer, self._config, transactional_id, calls=calls)
        finally:
            worker.end()

    async def glimpse(self, start: int) -> Ledger:
        # In the log's own thread, which has nothing else to do yet: many shards at a time need not wait for each other.
        return await self._asker.call(self._reader().glimpse, start)

    async def ledger(self, start: int) -> Ledger:
        if self._extents is not None:
            self._extents.open()
        return await self._asker.call(self._reader().read, start)

    async def examine(self, rows: Sequence[OutboxRow], *, again: bool = False) -> Mapping[int, Refusal]:
        if not again and self._book.passes(rows):
            return {}
        return await self._look_ups.examine(rows, again=again)

    def passes(self, rows: Sequence[OutboxRow]) -> bool:
        return self._book.passes(rows)

    def passes_too(self, topics: Set[str], *, largest: int) -> bool:
        return self._book.passes_too(topics, largest=largest)

    def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        return self._book.known_partitions(topics)

    def choose_partitions(self, rows: Sequence[OutboxRow]) -> Sequence[int] | None:
        topics = {row[TOPIC] for row in rows}
        self._same.sending(self._book.known_ids(topics))  # before: the number of partitions may not be older
        partitions = self._book.partitions(topics)
        return None if partitions is None else self._placing.choose(rows, partitions)

    async def begin(self) -> bool:
        if self._extents is not None:
            self._extents.begin()
        with self._fencing.noting_stuck():
            return await self._rotation.begin()

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        if self._extents is not None and not self._extents.is_known(rows):
            await self._asker.call(self._extents.sending, rows)
        return await self._rotation.publish(rows, partitions)

    async def write(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> None:
        if self._extents is None:
            return await self._rotation.write(records)
        extents = await self._extents.records(entry)
        await self._rotation.write(records, extents)

    async def commit(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> int:
        if self._extents is None:
            return await self._rotation.commit(records)
        extents = await self._extents.records(entry) if records else None
        offset = await self._rotation.commit(records, extents)
        self._extents.committed()
        return offset

    async def await_readable(self) -> None:
        with self._fencing.noting_stuck():
            await self._rotation.await_readable()

    async def close(self) -> None:
        if self._extents is not None:
            self._extents.close()
        self._fencing.close()
        await self._rotation.close()
        self._asker.end()
        self._look_ups.end()

    async def _stable_offsets(self, places: Collection[TopicAndPartition]) -> Mapping[TopicAndPartition, int]:
        return await self._asker.call(self._book.cluster.stable_offsets, places)

    def _reader(self) -> LedgerReader:
        return LedgerReader(self._config, self._names, self._shard, cluster=self._book.cluster)
