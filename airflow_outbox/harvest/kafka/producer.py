"""The port `Log` over an idempotent confluent-kafka producer, and the settings that every producer here shares."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException, Message, Producer

from airflow_outbox.errors import PublishError, RecordsRefusedError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.error_kinds import ErrorKind, kind_of
from airflow_outbox.harvest.kafka.errors import (
    CLIENT_ERRORS,
    REFUSALS,
    clocks_differ,
    explained,
    not_allowed,
    raised,
    refused_settings,
)
from airflow_outbox.harvest.kafka.look_ups import LookUps
from airflow_outbox.harvest.kafka.partitioner import DEFAULT_PARTITIONER
from airflow_outbox.harvest.kafka.settings import of_producer
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.ports import Delivery
from airflow_outbox.harvest.worker_thread import SignsOfLife, Watchdog
from airflow_outbox.values.records import MarkedRecord
from airflow_outbox.values.refusals import Refusal

logger = logging.getLogger(__name__)

PARTITION_BY_KEY = -1

UNKNOWN = frozenset({BrokerError.UNKNOWN_TOPIC_OR_PART, BrokerError._UNKNOWN_TOPIC, BrokerError._UNKNOWN_PARTITION})
"""Codes by which a topic, or a partition, is not there."""


def producer_settings(config: HarvestConfig) -> dict[str, Any]:
    """Return the producer's settings: defaults, overridden by the user's, then by those that the protocol needs."""
    return {
        "compression.type": "lz4",
        "linger.ms": 1,
        "batch.size": 1_000_000,
        "partitioner": DEFAULT_PARTITIONER,
        "delivery.timeout.ms": int(config.limits.delivery_timeout * 1000),
        # A topic was there when it was looked up. One that is not there for so long is deleted: nobody waits for it.
        "topic.metadata.propagation.max.ms": 2000,
        **of_producer(config),
        "enable.idempotence": True,
        "acks": "all",
        # The engine bounds records and bytes in flight: the client's queue must never be full first.
        "queue.buffering.max.messages": max(100_000, 2 * config.limits.max_in_flight_records),
        "queue.buffering.max.kbytes": max(1_048_576, 4 * config.limits.max_in_flight_bytes // 1024),
    }


class KafkaLog:
    """Publishes the records of one term.

    Delivery reports arrive in a polling thread and reach the event loop in bursts.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        book: TopicCache,
        individually: bool,
        on_throttled: Callable[[float], object],
        watchdog: Watchdog | None,
    ) -> None:
        """With tokens this waits for one: use `open`."""
        self._on_throttled = on_throttled
        self._loop = loop
        self._book = book
        self._individually = individually
        if individually:
            settings = {**settings, "batch.num.messages": 1}
        elif book.smallest_max_bytes is not None:  # Kafka refuses a larger batch whole
            settings = {**settings, "batch.size": min(book.smallest_max_bytes, int(settings["batch.size"]))}
        self._complaint: str | None = None
        self._failure: PublishError | None = None
        self._settings = settings
        self._reports: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._wake_is_due = False
        self._closing = threading.Event()
        try:
            callbacks = {"error_cb": self._complain, "throttle_cb": self._throttled}
            self._producer = Producer({**settings, **callbacks}, logger=logger)
        except REFUSALS as error:
            raise refused_settings(error, settings, remedy="Correct kafka or kafka_producer") from error
        self._look_ups = LookUps(book)
        poller = threading.Thread(target=self._poll, name="outbox-deliveries", daemon=True)
        self._signs = SignsOfLife(poller.name)
        self._watchdog = watchdog
        if watchdog is not None:
            watchdog.watch(self._signs)
        poller.start()

    @classmethod
    async def open(
        cls,
        settings: dict[str, Any],
        *,
        book: TopicCache,
        individually: bool = False,
        on_throttled: Callable[[float], object] = lambda _: None,
        watchdog: Watchdog | None = None,
    ) -> Self:
        """Return a new producer with these settings. Raises KafkaError for settings that Kafka's client refuses.

        - `book`: what the process knows of topics
        - `individually`: each record goes out by itself
        - `on_throttled`: told, in some thread, for how many seconds a quota holds the producer back
        - `watchdog`: watches the thread that takes the reports
        """
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(cls, settings, loop, book, individually, on_throttled, watchdog)

    async def examine(self, records: Sequence[MarkedRecord], *, again: bool = False) -> Mapping[int, Refusal]:
        return await self._look_ups.examine(records, again=again)

    def send(self, record: MarkedRecord) -> None:
        try:
            self._producer.produce(
                record.topic,
                key=record.key,
                value=record.value,
                headers=list(zip(record.header_names, record.header_values, strict=True)),  # type: ignore[arg-type]
                on_delivery=partial(self._delivered, record),
                partition=PARTITION_BY_KEY if record.partition is None else record.partition,
            )
        except (KafkaException, BufferError, ValueError, TypeError) as error:
            certain = not isinstance(error, BufferError)
            reason = error.args[0] if isinstance(error, KafkaException) else error
            self._report(Delivery(record, self._undelivered(record, reason, certain=certain)))

    async def deliveries(self) -> Sequence[Delivery]:
        await self._arrived.wait()
        self._arrived.clear()
        self._wake_is_due = False
        if self._failure is not None:
            raise self._failure
        return [self._reports.popleft() for _ in range(len(self._reports))]

    async def close(self) -> None:
        self._closing.set()
        self._look_ups.end()
        if self._watchdog is not None:
            self._watchdog.forget(self._signs)
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _delivered(self, record: MarkedRecord, error: BrokerError | None, _: Message) -> None:
        undelivered = None
        if error is not None:
            undelivered = self._undelivered(record, error, certain=self._individually)
        self._report(Delivery(record, undelivered))

    def _undelivered(self, record: MarkedRecord, error: object, *, certain: bool) -> PublishError:
        """Return the error. `certain`: if the record is refused at all, it is itself the reason."""
        if isinstance(error, BrokerError) and error.code() == BrokerError.INVALID_TIMESTAMP:
            self._book.found_untimely(record.topic)
            return PublishError(clocks_differ(record.topic))
        reason = self._why(record, error)
        kind = kind_of(error) if isinstance(error, BrokerError) else None
        if (kind is not None and kind.narrows) or isinstance(error, ValueError | TypeError):
            if isinstance(error, BrokerError) and error.code() == BrokerError.MSG_SIZE_TOO_LARGE:
                batch_size = 0 if self._individually else int(self._settings["batch.size"])
                self._book.found_too_large(record.topic, record.key, record.value, batch_size=batch_size)
            if isinstance(error, BrokerError) and error.code() in UNKNOWN:
                self._book.forget([record.topic])
            else:
                self._book.doubt(record.topic)
            records = [record.id] if certain else []
            is_unclear = kind is ErrorKind.UNCLEAR
            is_explained = not certain and not is_unclear
            topics = [record.topic]
            return RecordsRefusedError(
                reason, records=records, topics=topics, explained=is_explained, unclear=is_unclear
            )
        if isinstance(error, BrokerError):
            self._book.unanswered(record.topic)
        name = f"record {record.id} (topic {record.topic}, key {shown(record.key)})"
        return PublishError(f"{name} was not published: {reason}")

    def _why(self, record: MarkedRecord, error: object) -> str:
        if not isinstance(error, BrokerError):
            return str(error)
        if error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            return not_allowed("WRITE", "topic", record.topic)
        if error.code() == BrokerError._MSG_TIMED_OUT and self._complaint is not None:
            return self._complaint
        return error.str() or error.name()

    def _complain(self, error: BrokerError) -> None:
        self._complaint = explained(error, self._settings)

    def _throttled(self, event: Any) -> None:
        if event.throttle_time > 0:  # 0 tells that it is over
            self._on_throttled(event.throttle_time)

    def _report(self, delivery: Delivery) -> None:
        self._reports.append(delivery)
        self._wake()

    def _wake(self) -> None:
        if not self._wake_is_due:
            self._wake_is_due = True
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._arrived.set)

    def _poll(self) -> None:
        self._signs.works = True
        while not self._closing.is_set():
            self._signs.show()
            try:
                self._producer.poll(0.1)
            except CLIENT_ERRORS as error:
                self._failure = PublishError(f"Kafka's client has failed: {raised(error).str()}")
                self._wake()
        with contextlib.suppress(*CLIENT_ERRORS):
            self._producer.poll(0)
        del self._producer  # here, because the client's end waits for its own threads


def shown(key: str | bytes | None) -> str:
    text = repr(key)
    return text if len(text) <= 60 else f"{text[:57]}..."
