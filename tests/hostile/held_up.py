"""A harvester of which one thread is held up for as long as the file is there that is named first.

The second argument is the thread's name; `loop` is the event loop, which is held up by SIGUSR1.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

from airflow_outbox.harvest.kafka.producer import KafkaLog
from airflow_outbox.harvest.worker_thread import Worker


def _hold_up(file: Path) -> None:
    while file.exists():
        time.sleep(0.05)


def _hold_up_calls(thread: str, file: Path) -> None:
    """Hold up a thread in each of its calls, as a disk or a debugger would."""
    call_of, delivered_of = Worker.call, KafkaLog._delivered

    async def call(worker: Worker, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        def held_up(*args: Any, **kwargs: Any) -> Any:
            if worker.signs.name == thread:
                _hold_up(file)
            return function(*args, **kwargs)

        return await call_of(worker, held_up, *args, **kwargs)

    def delivered(log: KafkaLog, *report: Any) -> None:
        if thread == "outbox-deliveries":
            _hold_up(file)
        delivered_of(log, *report)

    vars_of: Any = Worker
    vars_of.call = call
    vars_of = KafkaLog
    vars_of._delivered = delivered


if __name__ == "__main__":
    hold, thread = Path(sys.argv.pop(1)), sys.argv.pop(1)
    signal.signal(signal.SIGUSR1, lambda *_: _hold_up(hold) if thread == "loop" else None)
    _hold_up_calls(thread, hold)
    from airflow_outbox.harvest.__main__ import main

    main()
