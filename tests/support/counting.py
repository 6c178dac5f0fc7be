"""The harvesting child process, which says after each commit, in an event `counted`, how often it has called Kafka's
producer and each of its threads, and how often it has asked what can be read.

To be run in place of `python -m airflow_outbox.harvest`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

from confluent_kafka import Producer

from airflow_outbox.harvest.__main__ import main
from airflow_outbox.harvest.kafka import transactional_producer
from airflow_outbox.harvest.rotation import Rotation
from airflow_outbox.harvest.worker_thread import Worker

counts: Counter[str] = Counter()


class CountedProducer(Producer):
    """The client's producer. Delivery reports are counted when they arrive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        counts["producers"] += 1
        super().__init__(*args, **kwargs)

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
        super().begin_transaction()  # refused while one is open: so a slow one is asked whether it has failed
        counts["begun"] += 1

    def flush(self, *args: Any) -> int:
        left = int(super().flush(*args))
        counts["flushes"] += left == 0  # one that runs out of time is made again
        return left

    def commit_transaction(self, *args: Any) -> None:
        counts["commits"] += 1
        super().commit_transaction(*args)
        os.write(sys.stdout.fileno(), (json.dumps({"event": "counted", "counts": counts}) + "\n").encode())


await_readable = Rotation.await_readable
call = Worker.call


async def counted_await_readable(rotation: Rotation) -> None:
    counts["asked"] += 1
    await await_readable(rotation)


async def counted_call(worker: Worker, *args: Any, **kwargs: Any) -> Any:
    counts[worker.signs.name] += 1
    return await call(worker, *args, **kwargs)


if __name__ == "__main__":
    transactional_producer.Producer = CountedProducer  # type: ignore[misc]
    Rotation.await_readable = counted_await_readable  # type: ignore[method-assign]
    Worker.call = counted_call  # type: ignore[method-assign]
    main()
