"""The port `Election` over a Kafka consumer group: fast NELI's traffic.

What it means is decided in protocol/election.py.

A thread polls the consumer, sends a heartbeat to the role's partition at every poll while this member owns it, and
tells the event loop what the candidate decided. Kafka calls the rebalance callbacks from that poll, and waits for
them: they are the barrier in which the outgoing leader finishes, for at most the heartbeat timeout.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka import CLIENT_SETTINGS
from airflow_outbox.harvest.protocol.election import Candidate, Change, Lead, Standing

logger = logging.getLogger(__name__)

ROLE = 0
_HEARTBEAT_INTERVAL = 0.1
_CLOSING_TIME = 5.0


def consumer_settings(config: HarvestConfig, group_id: str) -> dict[str, Any]:
    """The electing consumer's settings: defaults, then the user's, then what the protocol depends on."""
    session_timeout_ms = int(config.limits.session_timeout * 1000)
    return {
        **CLIENT_SETTINGS,
        **config.kafka,
        **config.kafka_consumer,
        "group.id": group_id,
        "group.protocol": "classic",
        "partition.assignment.strategy": "range,roundrobin",
        "session.timeout.ms": session_timeout_ms,
        "heartbeat.interval.ms": max(100, session_timeout_ms // 10),
        # A leader whose polling has stopped is to lose the role as soon as one whose process has stopped.
        "max.poll.interval.ms": session_timeout_ms,
        "auto.offset.reset": "latest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "allow.auto.create.topics": False,
    }


class NeliElection:
    """One member of the group. It joins when `changes` is first asked."""

    def __init__(self, config: HarvestConfig, *, topic: str, group_id: str, on_error: Callable[[str], None]) -> None:
        """`on_error` is called in the event loop with what Kafka complains of.

        Raises KafkaError for settings it refuses.
        """
        self._topic = topic
        self._timeout = config.limits.heartbeat_timeout
        self._on_error = on_error
        self._member = uuid4().bytes
        self._candidate = Candidate(self._timeout)
        self._lock = threading.Lock()  # the candidate is asked by the polling thread and told by the event loop
        self._released = threading.Event()
        self._released.set()
        self._closing = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._changes: asyncio.Queue[Change | None] = asyncio.Queue()
        heartbeats = {
            **CLIENT_SETTINGS,
            **config.kafka,
            "acks": 1,
            "linger.ms": 0,
            "message.timeout.ms": int(self._timeout * 1000),
            "queue.buffering.max.messages": 100,
        }
        try:
            self._producer = Producer(heartbeats, logger=logger)
            self._consumer = Consumer(
                {**consumer_settings(config, group_id), "error_cb": self._complain}, logger=logger
            )
        except (KafkaException, ValueError, TypeError) as error:
            raise KafkaError(f"Kafka settings: {error}. Correct kafka or kafka_consumer") from error
        self._thread = threading.Thread(target=self._run, name="outbox-election", daemon=True)

    @property
    def standing(self) -> Standing:
        return self._candidate.standing

    async def changes(self) -> AsyncIterator[Change]:
        self._thread.start()
        while (change := await self._changes.get()) is not None:
            yield change

    def released(self) -> None:
        self._released.set()

    def fenced(self) -> None:
        with self._lock:
            self._candidate.fenced(time.monotonic())

    async def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _CLOSING_TIME)
        self._changes.put_nowait(None)

    def _run(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        heartbeat_due = 0.0
        while not self._closing.is_set():
            now = time.monotonic()
            if self._candidate.is_owner and now >= heartbeat_due:
                self._send_heartbeat(now)
                heartbeat_due = now + _HEARTBEAT_INTERVAL
            message = self._consumer.poll(_HEARTBEAT_INTERVAL / 2)
            if message is not None:
                self._read(message)
            with self._lock:
                self._tell(self._candidate.passed(time.monotonic()))
        self._consumer.close()

    def _send_heartbeat(self, now: float) -> None:
        try:
            self._producer.produce(self._topic, partition=ROLE, key=self._member, value=repr(now))
        except (BufferError, KafkaException) as error:
            logger.debug("heartbeat not sent: %s", error)  # the one that is not read back will tell
        self._producer.poll(0)

    def _read(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            self._complain(error)
        elif message.partition() == ROLE and message.key() == self._member:
            with self._lock:
                self._tell(self._candidate.heartbeat_read(float(message.value() or b"nan"), time.monotonic()))

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # From the end: older heartbeats prove nothing.
        consumer.assign([TopicPartition(partition.topic, partition.partition, OFFSET_END) for partition in partitions])
        if any(partition.partition == ROLE for partition in partitions):
            with self._lock:
                self._tell(self._candidate.assigned(time.monotonic()))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if any(partition.partition == ROLE for partition in partitions):
            with self._lock:
                self._tell(self._candidate.revoked())
            self._released.wait(self._timeout)
        consumer.unassign()

    def _tell(self, change: Change | None) -> None:
        if change is None or self._closing.is_set():
            return
        if isinstance(change, Lead):
            self._released.clear()
        self._in_loop(self._changes.put_nowait, change)

    def _complain(self, error: BrokerError) -> None:
        if error.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
            self._in_loop(self._on_error, f"there is no topic {self._topic}. Run `airflow-outbox init`")
        else:
            self._in_loop(self._on_error, f"Kafka: {error.str()}")

    def _in_loop(self, callback: Callable[[Any], None], argument: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, argument)
