"""A harvester on a machine whose clock is wrong by as many seconds as stand in the file that is named first: all that
it asks the time, and the time of the records that its Kafka client sends. The clock may be set while it runs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka


def _go_wrong(file: Path) -> None:
    right, right_ns = time.time, time.time_ns

    def wrong_by() -> float:
        return float(file.read_text() or 0)

    class Producer(confluent_kafka.Producer):
        def produce(self, *args: Any, **values: Any) -> None:
            """The time is the seventh argument, or named."""
            now = int(1000 * time.time())
            if len(args) > 6:
                return super().produce(*args[:6], now, *args[7:], **values)
            super().produce(*args, timestamp=now, **values)

    time.time = lambda: right() + wrong_by()
    time.time_ns = lambda: right_ns() + int(1e9 * wrong_by())
    confluent_kafka.Producer = Producer  # type: ignore[misc]


if __name__ == "__main__":
    _go_wrong(Path(sys.argv.pop(1)))
    from airflow_outbox.harvest.__main__ import main

    main()
