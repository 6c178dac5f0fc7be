"""Note when a consumer that reads committed sees each row, in a process of its own.

It prints lines of JSON. Twice a second: how many rows it has seen. When its stdin ends: each row's number and the
moment at which it was first seen, by `time.monotonic()`, and how many were seen again.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time

from confluent_kafka import Consumer, TopicPartition

from benchmarks.peers.rows import number_of

_TELL_INTERVAL = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, required=True)
    given = parser.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": given.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(given.topic, number, 0) for number in range(given.partitions)])
    ending = threading.Event()
    threading.Thread(target=_tell_end, args=(ending,), daemon=True).start()
    seen: dict[int, float] = {}
    again, told_at = 0, 0.0
    while not ending.is_set():
        message = consumer.poll(0.05)
        now = time.monotonic()
        if message is not None and message.error() is None:
            number = number_of(message.value() or b"")
            if number is not None and seen.setdefault(number, now) != now:
                again += 1
        if now - told_at > _TELL_INTERVAL:
            told_at = now
            print(json.dumps({"seen": len(seen)}), flush=True)
    print(json.dumps({"rows": list(seen.items()), "again": again}), flush=True)
    consumer.close()


def _tell_end(ending: threading.Event) -> None:
    sys.stdin.read()
    ending.set()


if __name__ == "__main__":
    main()
