"""`airflow-outbox harvest`: harvest without Airflow."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from airflow_outbox.cli.options import clear, clear_errors, configuration_of_many
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.leaving import leave
from airflow_outbox.harvest.many.process import harvest_many
from airflow_outbox.harvest.output import NdjsonEvents, to_stderr
from airflow_outbox.harvest.process import Until, harvest
from airflow_outbox.harvest.renewal import READ_INTERVAL, fingerprint
from airflow_outbox.harvest.several_processes import harvest_in_processes
from airflow_outbox.operate.config_option import READ_AGAIN


@click.command("harvest")
@configuration_of_many
@click.option("--until", default="forever", show_default=True, help="forever, drained, or an ISO 8601 time.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535 - 64),
    help="Serve /metrics, /healthz and /livez here; 0: any free port. With several processes, each has the next one.",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address to serve them at.")
@click.pass_context
def harvest_command(
    context: click.Context, config: HarvestConfig, until: str, metrics_port: int | None, metrics_host: str
) -> None:
    """Harvest, until SIGTERM. Events go to stdout as NDJSON."""
    if metrics_port is None and context.get_parameter_source("metrics_host") is not ParameterSource.DEFAULT:
        raise click.UsageError("--metrics-host goes with --metrics-port: nothing is served without it")
    with clear_errors():
        Until.parse(until)
        metrics_at = None if metrics_port is None else (metrics_host, metrics_port)
    status = 0
    try:
        asyncio.run(_Command(config, context.meta[READ_AGAIN], until=until, metrics_at=metrics_at).run())
    except OutboxError as error:
        refusal = clear(error)
        to_stderr().write(f"Error: {refusal.format_message()}\n")
        status = refusal.exit_code
    leave(status)


class _Command:
    """Harvests until it is asked to end, or has reached `until`: each time by the configuration as it is then.

    It begins again when the configuration has changed, which it looks for while a server can't be reached.
    """

    def __init__(
        self,
        config: HarvestConfig,
        read_again: Callable[[], HarvestConfig],
        *,
        until: str,
        metrics_at: tuple[str, int] | None,
    ) -> None:
        self._config = config
        self._read_again = read_again
        self._until = until
        self._metrics_at = metrics_at
        self._used = fingerprint(config.model_dump())
        self._events = NdjsonEvents(sys.stdout)
        self._is_asked_to_end = False
        self._stop = asyncio.Event()
        self._unreached = asyncio.Event()
        self._has_started = False

    async def run(self) -> None:
        """Raises what the harvest raises; but after a change, what keeps it from starting is tried again."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end)
        is_first = True
        while True:
            self._has_started = False
            watching = asyncio.create_task(self._stop_when_changed())
            try:
                await self._harvest()
            except OutboxError as error:
                if is_first or self._has_started:
                    raise
                self._events("error", error=str(error), retry_in=READ_INTERVAL)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(READ_INTERVAL):
                        await self._stop.wait()
                await asyncio.to_thread(self._reads_another)
            else:
                if not self._stop.is_set():
                    return
            finally:
                watching.cancel()
            if self._is_asked_to_end:
                return
            gc.unfreeze()  # the next harvest freezes what is there
            gc.collect()  # cycles hold Kafka's clients, and with them threads
            is_first = False
            self._stop.clear()

    async def _harvest(self) -> None:
        config = self._config
        if config.processes > 1:
            await harvest_in_processes(
                config, until=self._until, report=self._report, stop=self._stop, metrics_at=self._metrics_at
            )
            return
        run = harvest_many if config.outboxes else harvest
        await run(
            config,
            until=Until.parse(self._until),
            events=self._tell,
            stop=self._stop,
            grace=config.limits.heartbeat_timeout,
            metrics_at=self._metrics_at,
        )

    async def _stop_when_changed(self) -> None:
        while True:
            await self._unreached.wait()
            self._unreached.clear()
            if await asyncio.to_thread(self._reads_another):
                self._stop.set()

    def _reads_another(self) -> bool:
        """Read the configuration again. Return whether it is another one now."""
        try:
            config = self._read_again()
        except click.ClickException as error:
            self._events("error", error=f"{error.format_message()}. The harvest goes on as it was", retry_in=None)
            return False
        now = fingerprint(config.model_dump())
        is_another = now != self._used
        self._config, self._used = config, now
        return is_another

    def _end(self) -> None:
        self._is_asked_to_end = True
        self._stop.set()

    def _hear(self, event: str) -> None:
        if event == "started":
            self._has_started = True
        elif event == "unreached":
            self._unreached.set()

    def _tell(self, event: str, /, **fields: object) -> None:
        self._hear(event)
        self._events(event, **fields)

    def _report(self, number: int, event: Mapping[str, Any]) -> None:
        """Show an event of one of several processes; what it logs goes to stderr."""
        self._hear(event["event"])
        if event["event"] == "output":
            to_stderr().write(f"process {number}: {event['line']}\n")
        else:
            self._events.pass_on({**event, "process": number})
