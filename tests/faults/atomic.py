"""Whole source transactions: a load of transactions whose records interleave, and who judges what became visible
together.

Consumers that read committed see a Kafka transaction as a whole. So a source transaction must lie in one. Within a
partition, what lies between two of Kafka's own markers is of one transaction: the markers are the offsets that no
consumer sees. Across partitions, the ledger tells which stretches belong together.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from harvesting import Outbox

from airflow_outbox import OutboxRecord, stash

_WRITERS = 4


@dataclass(frozen=True, slots=True)
class Place:
    """Which record of which source transaction."""

    transaction: int
    number: int
    total: int

    @classmethod
    def of(cls, message: Message) -> Place:
        return cls(*json.loads(message.value() or b""))


class InterleavedLoad:
    """Transactions of several sizes, open at the same time, that write their records in turns; some are rolled back.

    Every record has a key of its own, so that a transaction's records go to all partitions.
    """

    def __init__(self, outbox: Outbox, *, sizes: Sequence[int]) -> None:
        self.committed: dict[int, int] = {}  # records by transaction
        self._outbox = outbox
        self._sizes = sizes
        self._next = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="interleaved load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._ending.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.is_set():
            self.write_some()

    def write_some(self) -> None:
        """As many transactions as there are writers, all open at once."""
        with ExitStack() as stack:
            writers = [stack.enter_context(psycopg.connect(self._outbox.database)) for _ in range(_WRITERS)]
            begun = range(self._next, self._next + _WRITERS)
            self._next = begun.stop
            sizes = [self._sizes[transaction % len(self._sizes)] for transaction in begun]
            for number in range(max(sizes)):
                for writer, transaction, size in zip(writers, begun, sizes, strict=True):
                    if number < size:
                        value = json.dumps([transaction, number, size])
                        stash(writer, [OutboxRecord(self._outbox.topic, f"{transaction}-{number}", value)])
            for writer, transaction, size in zip(writers, begun, sizes, strict=True):
                if transaction % 7 == 6:
                    writer.rollback()
                else:
                    writer.commit()
                    self.committed[transaction] = size


def torn(committed: dict[int, int], messages: Iterable[Message], batches: dict[tuple[int, int], int]) -> list[str]:
    """Source transactions that are not whole, or not in one Kafka transaction, or not there once, in words.

    `batches` tells the batch of a partition and offset.
    """
    seen: defaultdict[int, list[Message]] = defaultdict(list)
    for message in messages:
        seen[Place.of(message).transaction].append(message)
    wrong = [f"{transaction} was never committed" for transaction in seen.keys() - committed.keys()]
    for transaction, total in committed.items():
        records = seen[transaction]
        if sorted(Place.of(message).number for message in records) != list(range(total)):
            wrong.append(f"{transaction} has {len(records)} of {total} records")
        elif len({batches.get((message.partition() or 0, message.offset() or 0)) for message in records}) != 1:
            wrong.append(f"{transaction} is in several batches")
    return wrong


def read_batches(outbox: Outbox, ledger_topic: str) -> dict[tuple[int, int], int]:
    """The batch of each partition and offset, as the ledger has it; each stretch is free of Kafka's own markers."""
    found: dict[tuple[int, int], int] = {}
    for message in everything(outbox.bootstrap, ledger_topic):
        if not (message.key() or b"").startswith(b"batch/") or not message.value():
            continue
        entry: dict[str, Any] = json.loads(message.value() or b"")
        for topic, partition, first, last, count in entry["extents"]:
            assert topic == outbox.topic
            assert last - first + 1 == count, f"batch {entry['batch']} is broken by a marker of Kafka's"
            found |= {(partition, offset): entry["batch"] for offset in range(first, last + 1)}
    return found


def everything(bootstrap: str, topic: str) -> list[Message]:
    """All that is committed in the one partition of a topic, with what compaction would remove."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Message] = []
        while True:
            for message in consumer.consume(1000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
    finally:
        consumer.close()
