"""The child process: it reads its configuration from stdin, writes events to stdout (NDJSON), and ends with its stdin.

The first line of stdin is `{"config": {…}, "until": "forever"}`. So secrets travel neither in arguments nor in the
environment. A supervisor that is killed takes its child along: the pipe closes. With `"relays_tokens": true` in that
line, the lines that follow are tokens for Kafka; with `"metrics_at": ["127.0.0.1", 9090]` it serves metrics and health
there. Exit status 0: ended as asked; 1: could not go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import NoReturn

from airflow_outbox.errors import ConfigurationError, KafkaError, OutboxError, PostgresUnreachableError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.oauth import RelayedTokens
from airflow_outbox.harvest.leaving import leave
from airflow_outbox.harvest.output import NdjsonEvents, drain
from airflow_outbox.harvest.process import Until, harvest

# A supervisor gives the child a second: half of it to finish the records in flight, then time to leave the group, then
# it ends in any case.
_GRACE = 0.5
_HARD_END = 0.9
_PATIENCE = 5.0  # with a supervisor that does not read the last events


def main() -> NoReturn:
    """Run until stdin ends or SIGTERM arrives."""
    os.set_blocking(sys.stdout.fileno(), False)  # for all that is written to this pipe, also by libraries
    events = NdjsonEvents(sys.stdout)
    try:
        status = asyncio.run(_run(events))
    except OutboxError as error:
        events("error", error=str(error), retry_in=None)
        if isinstance(error, KafkaError | PostgresUnreachableError):
            events("unreached", error=str(error))
        status = 1
    except Exception as error:
        with contextlib.suppress(OSError):  # nobody reads it
            traceback.print_exc()
        events("error", error=f"a bug in airflow-outbox: {error!r}. The traceback is on stderr", retry_in=None)
        status = 1
    drain(_PATIENCE)
    leave(status)


async def _run(events: NdjsonEvents) -> int:
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    tokens = RelayedTokens()
    config, until, metrics_at = _parse(line, tokens)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        if not stop.is_set():
            stop.set()
            threading.Timer(_HARD_END, os._exit, (0,)).start()

    def read_tokens_until_the_pipe_closes() -> None:
        for token in sys.stdin.buffer:
            tokens.take(token)
        loop.call_soon_threadsafe(end)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    threading.Thread(target=read_tokens_until_the_pipe_closes, name="outbox-stdin", daemon=True).start()
    if config.outboxes:
        from airflow_outbox.harvest.many.process import harvest_many  # loaded only where there are many

        await harvest_many(config, until=until, events=events, stop=stop, grace=_GRACE, metrics_at=metrics_at)
    else:
        await harvest(config, until=until, events=events, stop=stop, grace=_GRACE, metrics_at=metrics_at)
    return 0


def _parse(line: bytes, tokens: RelayedTokens) -> tuple[HarvestConfig, Until, tuple[str, int] | None]:
    try:
        given = json.loads(line)
        settings, until = given["config"], given.get("until", "forever")
        metrics_at = (str(at[0]), int(at[1])) if (at := given.get("metrics_at")) else None
        if given.get("relays_tokens"):
            settings = {**settings, "kafka": {**settings["kafka"], "oauth_cb": tokens}}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigurationError(
            'stdin must begin with one line of JSON: {"config": {...}, "until": "forever"}'
        ) from None
    return HarvestConfig.validated(settings, source="config"), Until.parse(until), metrics_at


if __name__ == "__main__":
    main()
