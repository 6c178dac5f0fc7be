"""Count the rows that a consumer that reads committed finds in a topic, in a process of its own; one line of JSON.

Every row has to be there once, and each key's rows in their order.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field

from confluent_kafka import Consumer, KafkaError, TopicPartition

from benchmarks.peers.rows import number_of

_QUIET_SECONDS = 20.0


@dataclass(slots=True)
class Found:
    """The contents of a topic, for rows that are numbered from 0."""

    records: int = 0
    lost: int = 0
    doubled: int = 0
    foreign: int = 0
    disordered: int = 0
    last_offsets: list[int] = field(default_factory=list)
    """The last record's offset in each partition, or -1."""

    @property
    def fault(self) -> str | None:
        """The fault in words."""
        wrong = {name: getattr(self, name) for name in ("lost", "doubled", "foreign", "disordered")}
        return ", ".join(f"{number} {name}" for name, number in wrong.items() if number) or None


def find(bootstrap: str, topic: str, *, partitions: int, rows: int) -> Found:
    """Read a topic to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found = Found(last_offsets=[-1] * partitions)
    times_seen = bytearray(rows)
    latest: dict[bytes, int] = {}
    unread = set(range(partitions))
    heard_at = time.monotonic()
    while unread:
        messages = consumer.consume(1000, timeout=0.1)
        heard_at = time.monotonic() if messages else heard_at
        if time.monotonic() - heard_at > _QUIET_SECONDS:
            sys.exit(f"nothing came from {topic} for {_QUIET_SECONDS:g} s")
        for message in messages:
            error, partition = message.error(), message.partition()
            assert partition is not None
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    sys.exit(str(error))
                unread.discard(partition)
                continue
            key, offset = message.key(), message.offset()
            assert offset is not None
            found.records += 1
            found.last_offsets[partition] = offset
            number = number_of(message.value() or b"")
            if number is None or number >= rows or not isinstance(key, bytes):
                found.foreign += 1
                continue
            if times_seen[number]:
                found.doubled += 1
                continue
            times_seen[number] = 1
            found.disordered += number < latest.get(key, -1)
            latest[key] = number
    consumer.close()
    found.lost = times_seen.count(0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    given = parser.parse_args()
    print(json.dumps(asdict(find(given.bootstrap, given.topic, partitions=given.partitions, rows=given.rows))))


if __name__ == "__main__":
    main()
