"""The port `TransactionalLog` over confluent-kafka: producers that take turns, and the ledger beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from typing import Self

from airflow_outbox.errors import KafkaError, StuckTransactionsError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.ledger_reader import LedgerReader
from airflow_outbox.harvest.protocol.ledger import Extent, Ledger, LedgerRecord
from airflow_outbox.harvest.protocol.parking import Refusal
from airflow_outbox.harvest.protocol.turns import Place
from airflow_outbox.harvest.rotation import Rotation, require_fenced
from airflow_outbox.harvest.stuck import StuckIds
from airflow_outbox.harvest.topic_book import TopicBook
from airflow_outbox.harvest.topics import KafkaNames
from airflow_outbox.harvest.transactional_producer import CALLS_UNTIL_STUCK, TransactionalProducer, fence_producer
from airflow_outbox.harvest.worker import Worker
from airflow_outbox.pages import OutboxRow


def transactional_ids(
    config: HarvestConfig, names: KafkaNames, *, shard: int, stuck: Collection[str] = ()
) -> tuple[str, ...]:
    """What Kafka knows the producers of a shard by: the first ids of which no transaction is stuck."""
    ids = (f"{names.transactional_id}.{shard}.{number}" for number in count())
    return tuple(islice((name for name in ids if name not in stuck), config.limits.transactional_ids))


def fence_producers(config: HarvestConfig, names: KafkaNames, recorded: Collection[str], *, shard: int) -> None:
    """Fence the producers of a shard: those of the configuration, and those that the fence row records.

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
        book: TopicBook,
        on_throttled: Callable[[float], object],
        stuck: StuckIds,
    ) -> None:
        """With tokens it waits for one: use `open`."""
        self._book = book
        self._config = config
        self._names = names
        self._shard = shard
        producers = [
            TransactionalProducer(
                config, transactional_id, ledger=(names.ledger_topic, shard), book=book, on_throttled=on_throttled
            )
            for transactional_id in transactional_ids(config, names, shard=shard, stuck=stuck.left_alone)
        ]
        self._stuck = stuck
        self._unfenced: list[str] = []
        self._fencer = Worker("outbox-fence")
        self._rotation = Rotation(producers, stable_offsets=self._stable_offsets)
        self._asker = Worker("outbox-ask")
        self._asker_again = Worker("outbox-ask-again")  # what is parked holds nothing else up

    @classmethod
    async def open(
        cls,
        config: HarvestConfig,
        names: KafkaNames,
        *,
        shard: int,
        book: TopicBook,
        on_throttled: Callable[[float], object] = lambda _: None,
        stuck: StuckIds | None = None,
    ) -> Self:
        """A new log, which connects while its caller does something else. `book` is what the process knows of topics,
        `stuck` what it knows of transactional ids; `on_throttled` is told, in some thread, for how many seconds a quota
        holds a producer back.

        Raises KafkaError for settings that Kafka's client refuses.
        """
        log = await asyncio.to_thread(cls, config, names, shard, book, on_throttled, stuck or StuckIds())
        threading.Thread(target=book.connect, name="outbox-connect", daemon=True).start()
        return log

    @property
    def transactional_ids(self) -> Sequence[str]:
        return [*self._rotation.transactional_ids, *self._unfenced]

    @property
    def unfenced(self) -> Collection[str]:
        return self._unfenced

    @property
    def readable(self) -> int:
        return self._rotation.readable

    async def fence(self, others: Collection[str] = ()) -> None:
        strays = sorted({*others} - {*self._rotation.transactional_ids})
        own, *found = await asyncio.gather(
            self._rotation.fence(),
            *(asyncio.to_thread(fence_producer, self._config, stray, calls=self._calls(stray)) for stray in strays),
            return_exceptions=True,
        )
        for stray, outcome in zip(strays, found, strict=True):
            if isinstance(outcome, StuckTransactionsError):
                self._stuck.leave_alone([stray])
                self._unfenced.append(stray)
            else:
                require_fenced([outcome])
                self._stuck.fenced(stray)
        with self._noting_stuck():
            require_fenced([own])
        for transactional_id in self._rotation.transactional_ids:
            self._stuck.fenced(transactional_id)

    async def fence_rest(self) -> None:
        for stray in [*self._unfenced]:
            try:
                await self._fencer.call(fence_producer, self._config, stray, calls=1)
            except KafkaError:
                continue
            self._unfenced.remove(stray)
            self._stuck.fenced(stray)

    def _calls(self, transactional_id: str) -> int:
        return 1 if transactional_id in self._stuck.left_alone else CALLS_UNTIL_STUCK

    @contextmanager
    def _noting_stuck(self) -> Iterator[None]:
        """The next log is to do without the ids that are stuck."""
        try:
            yield
        except StuckTransactionsError as error:
            self._stuck.leave_alone(error.transactional_ids)
            raise

    async def glimpse(self, start: int) -> Ledger:
        return await asyncio.to_thread(self._reader().glimpse, start)

    async def ledger(self, start: int) -> Ledger:
        return await asyncio.to_thread(self._reader().read, start)

    async def examine(self, rows: Sequence[OutboxRow], *, again: bool = False) -> Mapping[int, Refusal]:
        if not again and self._book.passes(rows):
            return {}
        asker = self._asker_again if again else self._asker
        return await asker.call(self._book.examine, rows, again=again)

    async def begin(self) -> bool:
        with self._noting_stuck():
            return await self._rotation.begin()

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        return await self._rotation.publish(rows)

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        return await self._rotation.commit(records)

    async def await_readable(self) -> None:
        with self._noting_stuck():
            await self._rotation.await_readable()

    async def close(self) -> None:
        self._stuck.uncertain.update(self._rotation.uncertain)
        await self._rotation.close()
        self._asker.end()
        self._asker_again.end()
        self._fencer.end()

    async def _stable_offsets(self, places: Collection[Place]) -> Mapping[Place, int]:
        return await self._asker.call(self._book.cluster.stable_offsets, places)

    def _reader(self) -> LedgerReader:
        return LedgerReader(self._config, self._names, self._shard, cluster=self._book.cluster)
