"""The harvesting child process, which says how often it calls Kafka's producer: after each commit, an event `counted`.

To be run in place of `python -m airflow_outbox.harvest`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

from confluent_kafka import Producer

from airflow_outbox.harvest import transactional
from airflow_outbox.harvest.__main__ import main

counts: Counter[str] = Counter()


class CountedProducer(Producer):
    """The client's producer. Delivery reports are counted when they arrive."""

    def produce(self, *args: Any, on_delivery: Any = None, **kwargs: Any) -> None:
        counts["produced"] += 1
        if on_delivery is None:
            super().produce(*args, **kwargs)
            return

        def reported(error: Any, message: Any) -> None:
            counts["reports"] += 1
            on_delivery(error, message)

        super().produce(*args, on_delivery=reported, **kwargs)

    def begin_transaction(self) -> None:
        counts["begun"] += 1
        super().begin_transaction()

    def flush(self, *args: Any) -> int:
        counts["flushes"] += 1
        return int(super().flush(*args))

    def commit_transaction(self, *args: Any) -> None:
        counts["commits"] += 1
        super().commit_transaction(*args)
        os.write(sys.stdout.fileno(), (json.dumps({"event": "counted", **counts}) + "\n").encode())


if __name__ == "__main__":
    transactional.Producer = CountedProducer  # type: ignore[misc]
    main()
