"""A member that behaves as goharvest does, as far as others can tell: its statements, its place in the group, its
heartbeats, one record of a key in flight.

It knows no fence. When it loses the lead, the next leader marks again what it has left marked.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict, deque
from functools import partial
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

_LIMIT = 100
_MAX_IN_FLIGHT = 1000
_HEARTBEAT_INTERVAL = 0.2
_DRAINING = 5.0

_MARK = """
UPDATE outbox SET leader_id = %(leader)s
WHERE id IN (SELECT id FROM outbox WHERE leader_id IS NULL OR leader_id != %(leader)s ORDER BY id LIMIT %(limit)s)
RETURNING id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values
"""


class _Row(NamedTuple):
    id: int
    topic: str
    key: str
    value: str | None
    header_keys: list[str]
    header_values: list[str]


class FakeGoharvest:
    """Joins the group at once, and leads for as long as it owns the leader topic's partition 0. `stop` leaves."""

    def __init__(self, *, data_source: str, bootstrap: str, leader_topic: str, group_id: str) -> None:
        self.published = 0
        self.leader_id: uuid.UUID | None = None
        self.failure: BaseException | None = None
        self._data_source = data_source
        self._leader_topic = leader_topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group_id,
                "partition.assignment.strategy": "range,roundrobin",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            }
        )
        self._in_flight: set[int] = set()
        self._waiting: defaultdict[str, deque[_Row]] = defaultdict(deque)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="goharvest", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish what is in flight and leave the group."""
        self._stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with psycopg.connect(self._data_source, autocommit=True) as self._connection:
                self._consumer.subscribe([self._leader_topic], on_assign=self._assigned, on_revoke=self._revoked)
                beat_at = 0.0
                while not self._stopping.is_set():
                    self._consumer.poll(0.005)
                    self._producer.poll(0)
                    if self.leader_id is not None:
                        if time.monotonic() > beat_at:
                            self._producer.produce(self._leader_topic, str(self.leader_id), partition=0)
                            beat_at = time.monotonic() + _HEARTBEAT_INTERVAL
                        if len(self._in_flight) < _MAX_IN_FLIGHT:
                            self._mark(self.leader_id)
                self._consumer.close()
        except BaseException as error:
            self.failure = error

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign(partitions)
        if any(partition.partition == 0 for partition in partitions):
            self.leader_id = uuid.uuid4()

    def _revoked(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        """The barrier: what was sent is waited for, what waits for its key is given up."""
        self.leader_id = None
        for queue in self._waiting.values():
            self._in_flight.difference_update(row.id for row in queue)
            queue.clear()
        self._producer.flush(_DRAINING)
        self._in_flight.clear()
        self._waiting.clear()
        consumer.unassign()

    def _mark(self, leader_id: uuid.UUID) -> None:
        found = self._connection.execute(_MARK, {"leader": leader_id, "limit": _LIMIT}).fetchall()
        for row in sorted(_Row(*values) for values in found):
            self._in_flight.add(row.id)
            if row.key in self._waiting:
                self._waiting[row.key].append(row)
            else:
                self._waiting[row.key] = deque()
                self._send(row)

    def _send(self, row: _Row) -> None:
        headers: Any = list(zip(row.header_keys, row.header_values, strict=True))
        self._producer.produce(
            row.topic, row.value, row.key, headers=headers, on_delivery=partial(self._delivered, row)
        )

    def _delivered(self, row: _Row, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self._connection.execute("DELETE FROM outbox WHERE id = %s", [row.id])
            self.published += 1
        else:
            self._connection.execute("UPDATE outbox SET leader_id = NULL WHERE id = %s", [row.id])
        self._in_flight.discard(row.id)
        queue = self._waiting[row.key]
        if queue and error is None:
            self._send(queue.popleft())
        elif not queue:
            del self._waiting[row.key]
