"""A member's heartbeats to the partitions of the election's topic, and whether Kafka takes the time in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException, Message, Producer

from airflow_outbox.harvest.kafka.errors import clocks_differ, not_allowed

logger = logging.getLogger(__name__)

_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.1, 0.25  # seconds between two heartbeats
_HEARTBEATS_IN_TIMEOUT = 8
# Heartbeats are well formed, so an invalid one has a refused time. (The error names it only for a batch of one.)
_UNTIMELY = (BrokerError.INVALID_TIMESTAMP, BrokerError.INVALID_RECORD, BrokerError._INVALID_DIFFERENT_RECORD)


def heartbeat_interval(timeout: float) -> float:
    """Return the seconds between two heartbeats, for a heartbeat timeout."""
    return min(_LONGEST_INTERVAL, max(_SHORTEST_INTERVAL, timeout / _HEARTBEATS_IN_TIMEOUT))


class Heartbeats:
    """Those of one member. Its thread sends them, and serves the producer by `poll`."""

    def __init__(
        self,
        settings: dict[str, Any],
        topic: str,
        *,
        on_error: Callable[[str], None],
        on_heartbeat: Callable[[float | None], object],
    ) -> None:
        """`settings` are the producer's. Both functions are called in some thread: `on_error` with Kafka's complaints,
        `on_heartbeat` with when a heartbeat was sent that Kafka took, on the monotonic clock; None if Kafka refused it
        because of its time.

        Raises what the client raises for settings that it refuses.
        """
        self._topic = topic
        self._member = uuid4().bytes
        self._on_error = on_error
        self._on_heartbeat = on_heartbeat
        self._producer = Producer({**settings, "acks": 1, "linger.ms": 0}, logger=logger)
        self.untimely: str | None = None
        """The error while Kafka refuses this member's time."""

    def send(self, partition: int) -> None:
        """Send one, some time soon. One that is lost is missed when it is not read back."""
        try:
            self._producer.produce(
                self._topic,
                partition=partition,
                key=self._member,
                value=repr(time.monotonic()),
                on_delivery=self._sent,
            )
        except (BufferError, KafkaException) as error:
            logger.debug("heartbeat not sent: %s", error)

    def poll(self, seconds: float) -> None:
        """Take reports of what was sent, for so long."""
        self._producer.poll(seconds)

    def end(self) -> None:
        """Let go of the producer, and of who is told: reports that never come hold this object. It is useless then."""
        del self._producer, self._on_error, self._on_heartbeat

    def sent_at(self, message: Message) -> float | None:
        """Return when this member sent a heartbeat that was read, on the monotonic clock; None if another one did."""
        return float(message.value() or b"nan") if message.key() == self._member else None

    def _sent(self, error: BrokerError | None, message: Message) -> None:
        is_untimely = error is not None and error.code() in _UNTIMELY
        if is_untimely or error is None:
            self._on_heartbeat(None if is_untimely else self.sent_at(message))
            self.untimely = clocks_differ(self._topic) if is_untimely else None
        if self.untimely is not None:
            self._on_error(self.untimely)
        if error is not None and error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            self._on_error(not_allowed("WRITE", "topic", self._topic))
