"""Whole source transactions: a load of transactions whose records interleave, and who judges what became visible
together.

Consumers that read committed see a Kafka transaction as a whole. So a source transaction must lie in one. Within a
partition, what one producer wrote between two of its markers belongs to one transaction; markers of the other producers
of the same leader may lie anywhere. No consumer shows whose a record or a marker is, so the broker's files are read for
it. Across partitions, the ledger tells which stretches belong together.
"""

from __future__ import annotations

import json
import struct
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from support.harvesting import PARTITIONS, PATIENCE, Outbox

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

_MOST_LEFT = 3_000  # records; or a busy machine drains for minutes what was written meanwhile
_WRITERS = 4


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Which record of which source transaction."""

    transaction: int
    number: int
    total: int

    @classmethod
    def of(cls, message: Message) -> SourceRecord:
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
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.is_set():
            self.write_some()
            while self._outbox.left() > _MOST_LEFT and not self._ending.wait(0.05):
                pass

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
        seen[SourceRecord.of(message).transaction].append(message)
    wrong = [f"{transaction} was never committed" for transaction in seen.keys() - committed.keys()]
    for transaction, total in committed.items():
        records = seen[transaction]
        if sorted(SourceRecord.of(message).number for message in records) != list(range(total)):
            wrong.append(f"{transaction} has {len(records)} of {total} records")
        elif len({batches.get((message.partition() or 0, message.offset() or 0)) for message in records}) != 1:
            wrong.append(f"{transaction} is in several batches")
    return wrong


def read_batches(outbox: Outbox, ledger_topic: str, kafka: EmbeddedKafka) -> dict[tuple[int, int], int]:
    """The batch of each partition and offset, as the ledger has it. In each stretch are the batch's records and no
    others, all of one producer, and none of this producer's markers.
    """
    written = {partition: written_into(kafka, outbox.topic, partition) for partition in range(PARTITIONS)}
    found: dict[tuple[int, int], int] = {}
    for message in everything(outbox.bootstrap, ledger_topic):
        if not (message.key() or b"").startswith(b"batch/") or not message.value():
            continue
        entry: dict[str, Any] = json.loads(message.value() or b"")
        for topic, partition, first, last, count in entry["extents"]:
            assert topic == outbox.topic
            inside = [part for part in written[partition] if part.first <= last and part.last >= first]
            records = [part for part in inside if not part.is_marker]
            assert sum(part.last - part.first + 1 for part in records) == count, f"foreign records in {entry}"
            producers = {part.producer for part in records}
            assert len(producers) == 1, f"several producers in {entry}"
            assert not any(part.is_marker and part.producer in producers for part in inside), f"{entry} is broken"
            found |= {(partition, offset): entry["batch"] for offset in range(first, last + 1)}
    return found


@dataclass(frozen=True, slots=True)
class Written:
    """Records that a producer wrote together, or a marker of one of its transactions."""

    first: int
    last: int
    producer: tuple[int, int]
    """Its id and epoch."""
    is_marker: bool


_HEADER = struct.Struct(">q i i b I h i q q q h i i")
"""The beginning of each batch of records in Kafka's files. The length counts from behind itself."""
_HEADER_BEHIND_LENGTH = _HEADER.size - 12
_MARKER = 0x20


def written_into(kafka: EmbeddedKafka, topic: str, partition: int) -> list[Written]:
    """Everything in a partition, committed or not, as the broker's files have it."""
    found = []
    for file in sorted((kafka.folder / "data" / f"{topic}-{partition}").glob("*.log")):
        content = file.read_bytes()
        at = 0
        while at + _HEADER.size <= len(content):
            first, length, _, magic, _, attributes, last, _, _, producer, epoch, _, _ = _HEADER.unpack_from(content, at)
            if length < _HEADER_BEHIND_LENGTH:
                break  # room that the broker has reserved
            assert magic == 2
            found.append(Written(first, first + last, (producer, epoch), bool(attributes & _MARKER)))
            at += 12 + length
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
