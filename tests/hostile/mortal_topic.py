"""A topic that is deleted, and made again."""

from __future__ import annotations

from dataclasses import replace

import psycopg
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.harvesting import PARTITIONS, PATIENCE, Outbox, make_topic, partitions_of, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.harvest.kafka.partitioner import murmur2

FEWER, MORE = 3, 7
OTHERS = b"others"


def _moves(key: bytes) -> bool:
    """Whether a key's old partition is there with each number of partitions, and is another one."""
    old = murmur2(key) % PARTITIONS
    return old < FEWER and old not in (murmur2(key) % FEWER, murmur2(key) % MORE)


KEYS = [key for key in (f"h{number}" for number in range(100)) if _moves(key.encode())][:8]


class MortalTopic:
    """One beside the innocents', and records for it."""

    def __init__(self, outbox: Outbox, *, name: str = "-mortal") -> None:
        self.outbox = replace(outbox, topic=outbox.topic + name)
        self.written = 0
        self._kafka = {"bootstrap.servers": outbox.bootstrap}
        self._admin = AdminClient(self._kafka)
        make_topic(self._kafka, self.outbox.topic)

    def write(self, records: int = 20) -> None:
        """Write the next records, in a transaction of their own."""
        numbers = range(self.written, self.written + records)
        self.written += records
        rows = [OutboxRecord(self.outbox.topic, KEYS[number % len(KEYS)], str(number)) for number in numbers]
        with psycopg.connect(self.outbox.database) as connection:
            stash(connection, rows)

    def write_by_others(self, records: int) -> None:
        """Let another application write this many records into each partition."""
        producer = Producer(self._kafka)
        for partition in range(self.outbox.partitions):
            for _ in range(records):
                producer.produce(self.outbox.topic, key=OTHERS, partition=partition)
        assert producer.flush(PATIENCE) == 0

    def delete(self) -> None:
        self._admin.delete_topics([self.outbox.topic])[self.outbox.topic].result()

    def make_again(self, partitions: int) -> None:
        """Make it with this many partitions, as soon as Kafka lets it."""

        def is_made() -> bool:
            try:
                self._admin.create_topics([NewTopic(self.outbox.topic, partitions, 1)])[self.outbox.topic].result()
            except KafkaException:
                return False
            return True

        wait_until(is_made)
        self.outbox.partitions = partitions
        wait_until(lambda: partitions_of(self._admin, self.outbox.topic) == partitions)

    @property
    def is_published(self) -> bool:
        """Whether any of it is; a new topic may have no leaders yet."""
        try:
            return self.outbox.written() > 0
        except KafkaException:
            return False

    @property
    def is_set_aside(self) -> bool:
        topics = "SELECT kafka_topic FROM outbox_parked WHERE cause = 'unknown_topic' AND discarded_at IS NULL"
        return (self.outbox.topic,) in self.outbox.query(topics)

    def set_aside(self) -> set[int]:
        """The numbers of its records that are set aside."""
        found = self.outbox.query(f"SELECT kafka_value FROM outbox_parked WHERE kafka_topic = '{self.outbox.topic}'")
        return {int(value) for (value,) in found}

    @property
    def is_out(self) -> bool:
        """Whether none of its records waits, nor any other."""
        parked = "SELECT count(*) FROM outbox_parked WHERE discarded_at IS NULL"
        return self.outbox.left() == 0 and self.outbox.query(parked) == [(0,)]

    def lanes(self) -> dict[str, list[int]]:
        """The numbers of each key in the topic as it is now, in the order in which a consumer sees them. No key may be
        in another partition than that of Kafka's Java clients.
        """
        lanes: dict[str, list[int]] = {}
        for message in self.outbox.committed():
            key, value = message.key() or b"", message.value() or b""
            if key != OTHERS:
                assert message.partition() == murmur2(key) % self.outbox.partitions, (key, value)
                lanes.setdefault(key.decode(), []).append(int(value))
        if self.outbox.settings.get("delivery") == "at_least_once":  # what comes again is left out
            return {key: list(dict.fromkeys(numbers)) for key, numbers in lanes.items()}
        return lanes

    def lanes_from(self, first: int) -> dict[str, list[int]]:
        """The numbers of each key from `first` on, as they were written."""
        return {key: self._numbers(key, first) for key in KEYS}

    def lanes_after_deletion(self, lanes: dict[str, list[int]]) -> dict[str, list[int]]:
        """What was written since the deletion, if the first numbers in `lanes` are the first that the deleted topic did
        not take. It took whole transactions. At least once, each of its partitions took records until its broker
        stopped it, and they stop one after the other.
        """
        at_least_once = self.outbox.settings.get("delivery") == "at_least_once"

        def partition(key: str) -> int:
            return murmur2(key.encode()) % PARTITIONS if at_least_once else 0

        first: dict[int, int] = {}
        for key, numbers in lanes.items():
            first[partition(key)] = min(numbers[0], first.get(partition(key), numbers[0]))
        return {key: self._numbers(key, first[partition(key)]) for key in KEYS}

    def _numbers(self, key: str, first: int) -> list[int]:
        return [number for number in range(first, self.written) if KEYS[number % len(KEYS)] == key]
