"""A consumer of a group, as others may have written it: `moving_reader.py BOOTSTRAP TOPIC GROUP PROTOCOL SECONDS`.

The group misses it when it is silent for so many seconds. It writes each record's value to stdout, and commits what it
has written every 0.2 s. SIGTERM lets it commit and leave.
"""

from __future__ import annotations

import signal
import sys
import time

from confluent_kafka import Consumer, KafkaException

COMMIT_INTERVAL = 0.2


def main(bootstrap: str, topic: str, group: str, protocol: str, session: str) -> None:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        **({"session.timeout.ms": 1000 * int(session)} if protocol == "classic" else {}),
    }
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    committed_at = time.monotonic()
    is_due = False
    while not ends:
        for message in consumer.consume(20, timeout=0.1):
            if message.error() is None:
                print(message.value().decode(), flush=True)
                is_due = True
        if is_due and time.monotonic() > committed_at + COMMIT_INTERVAL:
            is_due, committed_at = not _commit(consumer), time.monotonic()
    if is_due:
        _commit(consumer)
    consumer.close()


def _commit(consumer: Consumer) -> bool:
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:  # a rebalance, or a broker that is away
        print(error, file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
