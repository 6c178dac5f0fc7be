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
from support.harvesting import PARTITIONS, wait_until

from airflow_outbox import OutboxRecord, stash

# For clients whose own delays must not be taken for the engine's.
IMPATIENT: dict[str, Any] = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "log_level": 0}
HOT_KEYS = 10
_COLD_KEYS = 1000
_BATCH = 250
_RECENT = 20_000


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
                "fetch.wait.max.ms": 10,
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
            {partition: OffsetSpec.latest() for partition in self._partitions}, request_timeout=10
        )
        return all(self._read_up_to.get(where.partition, 0) >= int(end.result().offset) for where, end in asked.items())

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._consumer.close()


class Load:
    """A writer of records: every other one has one of ten hot keys, the others one of a thousand.

    Until `fault_has_hit` it keeps the outbox filled, however long that takes; then it writes on until `records` are
    stashed, at once. It goes on through failures of Postgres: a table of its own tells which transactions were
    committed.
    """

    def __init__(self, database: str, *, topic: str, records: int, reader: TopicReader, pot: int) -> None:
        """`pot` is how many records wait or are in flight before the fault."""
        self.stashed: defaultdict[Lane, list[int]] = defaultdict(list)
        self.written = 0
        self._database = database
        self._topic = topic
        self._records = records
        self._reader = reader
        self.pot = pot
        self._hit = threading.Event()
        self._ending = threading.Event()
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

    def _run(self) -> None:
        while not self._ending.is_set() and not (self._hit.is_set() and self.written >= self._records):
            if self._hit.is_set() or self.written - len(self._reader) < self.pot:
                self._write()
            else:
                self._hit.wait(0.01)

    def _write(self) -> None:
        numbers = range(self.written, self.written + _BATCH)
        records = [OutboxRecord(self._topic, self._key(number), str(number)) for number in numbers]
        while not self._ending.is_set():
            with contextlib.suppress(psycopg.OperationalError):
                # Whoever finds the batch there has committed it before, and was not told.
                with psycopg.connect(self._database, connect_timeout=5) as connection:
                    entered = connection.execute(
                        "INSERT INTO written VALUES (%s) ON CONFLICT DO NOTHING RETURNING batch", [numbers.start]
                    )
                    if entered.fetchone() is not None:
                        stash(connection, records)
                break
            self._ending.wait(0.05)
        for number in numbers:
            self.stashed[self._topic, self._key(number)].append(number)
        self.written += _BATCH

    @staticmethod
    def _key(number: int) -> str:
        half = number // 2
        return f"cold-{half % _COLD_KEYS}" if number % 2 else f"hot-{half % HOT_KEYS}"
