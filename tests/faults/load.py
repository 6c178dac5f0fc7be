"""A load that is in its middle for as long as a test needs, and the reader of what comes out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from faults.checker import Lane, Sighting
from support.harvesting import PARTITIONS, PATIENCE, wait_until

from airflow_outbox import OutboxRecord, Ticket, stash

# For clients whose own delays must not be taken for the engine's.
IMPATIENT: dict[str, Any] = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "log_level": 0}
HOT_KEYS = 10
_COLD_KEYS = 1000
_BATCH = 250
_BATCH_AT_A_RATE = 25
_RECENT = 20_000
_LOOK_INTERVAL = 0.05


class TopicReader:
    """A plain consumer of a topic that reads committed, from its beginning, with a clock of its own. It ends with
    `close`.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sightings: list[Sighting] = []
        self.at: list[float] = []  # when each came, on the system's clock, as events have it
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                **IMPATIENT,
                "fetch.wait.max.ms": 100,  # what comes meanwhile is sent at once
                "fetch.error.backoff.ms": 10,
            }
        )
        self._read_up_to: dict[int, int] = {}  # by partition, whenever it stood at the end
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._partitions = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        self._consumer.assign(self._partitions)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            for message in self._consumer.consume(500, timeout=0.02):
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        self._read_up_to[message.partition() or 0] = message.offset() or 0
                    continue
                topic, key, value, partition = message.topic(), message.key(), message.value(), message.partition()
                assert topic is not None
                assert partition is not None
                assert isinstance(key, bytes)
                self.sightings.append(Sighting((topic, key.decode()), int(value or b"-1"), partition))
                self.at.append(time.time())

    def __len__(self) -> int:
        return len(self.at)

    def first_since(self, moment: float, *, within: float) -> float:
        """When the first record came that came at `moment` or later."""
        found: list[float] = []

        def came() -> bool:
            found[:] = [at for at in self.at[-_RECENT:] if at >= moment]
            return bool(found)

        wait_until(came, within=within, doing="no record came")
        return found[0]

    def has_read_all(self) -> bool:
        """Whether it stands at the end of the topic."""
        asked = self._admin.list_offsets(
            {partition: OffsetSpec.latest() for partition in self._partitions}, request_timeout=PATIENCE
        )
        return all(self._read_up_to.get(where.partition, 0) >= int(end.result().offset) for where, end in asked.items())

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._consumer.close()


class Load:
    """A writer of records: every other one has one of ten hot keys, the others one of a thousand.

    Until `fault_has_hit` it keeps the outbox filled, however long that takes, and also when the reader is late; then it
    writes on until `records` are stashed, at once. With a `rate` it writes so many records a second, whatever is read
    of them. It goes on through failures of Postgres: a table of its own tells which transactions were committed.
    """

    def __init__(
        self, database: str, *, topic: str, records: int, reader: TopicReader, pot: int, rate: float | None = None
    ) -> None:
        """`pot` is how many records wait or are in flight before the fault."""
        self.stashed: defaultdict[Lane, list[int]] = defaultdict(list)
        self.written = 0
        self.tickets: list[tuple[Ticket, range]] = []
        """The ticket of each transaction, with its numbers."""
        self._database = database
        self._topic = topic
        self._records = records
        self._reader = reader
        self.pot = pot
        self._rate = rate
        self._hit = threading.Event()
        self._ending = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._look_at = 0.0
        with psycopg.connect(database) as connection:
            connection.execute("CREATE TABLE written (batch bigint PRIMARY KEY)")
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def fault_has_hit(self) -> None:
        self._hit.set()

    def finish(self, within: float) -> None:
        """Wait until all is written."""
        self.fault_has_hit()
        self._thread.join(within)
        assert not self._thread.is_alive(), f"only {self.written} records were stashed"

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._ending.is_set() and not (self._hit.is_set() and self.written >= self._records):
            if self._is_due(time.monotonic() - begun):
                self._write()
            else:
                self._ending.wait(0.01)

    def _is_due(self, seconds: float) -> bool:
        if self._rate is not None:
            return self.written < self._rate * seconds
        return self._hit.is_set() or self.written - len(self._reader) < self.pot or self._is_empty()

    def _is_empty(self) -> bool:
        """Whether the outbox was empty at the last look: all is purged, and the reader has yet to come there."""
        now = time.monotonic()
        if self.pot == 0 or now < self._look_at:
            return False
        self._look_at = now + _LOOK_INTERVAL
        with contextlib.suppress(psycopg.OperationalError):
            connection = self._connected()
            with connection.transaction():
                return connection.execute("SELECT FROM outbox LIMIT 1").rowcount == 0
        return False

    def _write(self) -> None:
        numbers = range(self.written, self.written + (_BATCH if self._rate is None else _BATCH_AT_A_RATE))
        records = [OutboxRecord(self._topic, self._key(number), str(number)) for number in numbers]
        while not self._ending.is_set():
            ticket: Ticket | None = None
            with contextlib.suppress(psycopg.OperationalError):
                connection = self._connected()
                # Whoever finds the batch there has committed it before, and was not told.
                with connection.transaction():
                    entered = connection.execute(
                        "INSERT INTO written VALUES (%s) ON CONFLICT DO NOTHING RETURNING batch", [numbers.start]
                    )
                    if entered.fetchone() is not None:
                        ticket = stash(connection, records)
                if ticket is not None:
                    self.tickets.append((ticket, numbers))
                break
            self._ending.wait(0.05)
        for number in numbers:
            self.stashed[self._topic, self._key(number)].append(number)
        self.written += len(numbers)

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._database, connect_timeout=20)
        return self._connection

    @staticmethod
    def _key(number: int) -> str:
        half = number // 2
        return f"cold-{half % _COLD_KEYS}" if number % 2 else f"hot-{half % HOT_KEYS}"
