"""Watch how far consumers that read committed could read a topic, in a process of its own and at little cost.

It asks the broker for the topic's last stable offsets fifty times a second, reads no record, and notes when they
changed. It prints a line of JSON

- when it has begun;
- whenever as many offsets as there are records are stable and nothing has changed for a moment;
- when nothing has changed for so long that nothing will. This patience begins when it reads a line.

It ends with its stdin.

Offsets don't count records, since the ends of transactions have offsets, too. `count` says which offset was the last
record's, and the notes say when it could be read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

INTERVAL = 0.02
_SETTLED_SECONDS = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--patience", type=float, required=True)
    given = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap, "log_level": 3})
    asked = {TopicPartition(given.topic, number): OffsetSpec.latest() for number in range(given.partitions)}  # type: ignore[no-untyped-call]
    begun = threading.Event()
    threading.Thread(target=_follow_stdin, args=(begun,), daemon=True).start()

    def offsets() -> list[int]:
        found = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30)
        return [found[partition].result().offset for partition in asked]

    changes: list[tuple[float, list[int]]] = [(time.monotonic(), offsets())]
    print(json.dumps({"state": "watching"}), flush=True)
    settled, stalled, waiting_since = False, False, None
    while True:
        time.sleep(INTERVAL)
        present = offsets()
        now = time.monotonic()
        if present != changes[-1][1]:
            changes.append((now, present))
            settled, stalled = False, False
        still = now - changes[-1][0]
        if not settled and still > _SETTLED_SECONDS and sum(present) >= given.records:
            settled = True
            print(json.dumps({"state": "settled", "changes": changes}), flush=True)
        if begun.is_set() and waiting_since is None:
            waiting_since = now
        if not stalled and waiting_since is not None and min(still, now - waiting_since) > given.patience:
            stalled = True
            print(json.dumps({"state": "stalled", "changes": changes}), flush=True)


def _follow_stdin(begun: threading.Event) -> None:
    for _ in sys.stdin:
        begun.set()
    os._exit(0)


if __name__ == "__main__":
    main()
