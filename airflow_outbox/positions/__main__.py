"""The process that replicates positions, or that looks whether a group may move.

Like the harvesting process, it reads its configuration from the first line of stdin, writes events to stdout (NDJSON),
and ends when its stdin closes. A process of its own costs a harvest or a triggerer no time, and can't end it: Kafka's
client may crash its process while a group's coordinator moves (`groups.py` says why).

With `"watch": {"group": …, "to": …}` in that line, it commits nothing. It tells why the group may not move to that
cluster, each time that the reason changes; null when it may.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import NoReturn

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.leaving import leave
from airflow_outbox.harvest.output import NdjsonEvents
from airflow_outbox.harvest.process import log_to_stderr
from airflow_outbox.positions.process import replicate, watch

_HARD_END = 0.8


def main() -> NoReturn:
    """Run until stdin ends or SIGTERM arrives."""
    os.set_blocking(sys.stdout.fileno(), False)  # for all that is written to this pipe, also by libraries
    events = NdjsonEvents(sys.stdout)
    status = 0
    try:
        asyncio.run(_run(events))
    except OutboxError as error:
        events("error", error=f"positions: {error}", retry_in=None)
        status = 1
    leave(status)


async def _run(events: NdjsonEvents) -> None:
    line = sys.stdin.buffer.readline()
    if not line:
        return
    try:
        given = json.loads(line)
        settings, watched = given["config"], given.get("watch")
    except (ValueError, LookupError, TypeError):
        raise ConfigurationError('stdin must begin with one line of JSON: {"config": {...}}') from None
    config = HarvestConfig.validated(settings, source="config")
    log_to_stderr(config.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        threading.Timer(_HARD_END, os._exit, (0,)).start()

    def wait_until_the_pipe_closes() -> None:
        while sys.stdin.buffer.readline():
            pass
        loop.call_soon_threadsafe(end)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    threading.Thread(target=wait_until_the_pipe_closes, name="outbox-stdin", daemon=True).start()
    if watched is None:
        await replicate(config, events=events, stop=stop)
    else:
        await watch(config, watched["group"], watched["to"], events=events, stop=stop)


if __name__ == "__main__":
    main()
