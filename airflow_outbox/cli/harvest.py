"""`airflow-outbox harvest`: harvest without Airflow."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from airflow_outbox.cli.options import clear, clear_errors, configuration_of_many
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.leaving import leave
from airflow_outbox.harvest.many.process import harvest_many
from airflow_outbox.harvest.output import NdjsonEvents, Output
from airflow_outbox.harvest.process import Until, harvest
from airflow_outbox.harvest.several_processes import harvest_in_processes


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
        asyncio.run(_harvest(config, until, metrics_at))
    except OutboxError as error:
        refusal = clear(error)
        Output(sys.stderr).write(f"Error: {refusal.format_message()}\n")
        status = refusal.exit_code
    leave(status)


async def _harvest(config: HarvestConfig, until: str, metrics_at: tuple[str, int] | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if config.processes > 1:
        report = partial(_report, Output(sys.stdout), Output(sys.stderr))
        await harvest_in_processes(config, until=until, report=report, stop=stop, metrics_at=metrics_at)
        return
    run = harvest_many if config.outboxes else harvest
    await run(
        config,
        until=Until.parse(until),
        events=NdjsonEvents(sys.stdout),
        stop=stop,
        grace=config.limits.heartbeat_timeout,
        metrics_at=metrics_at,
    )


def _report(events: Output, log: Output, number: int, event: Mapping[str, Any]) -> None:
    """Show an event of one of several processes; what it logs goes to stderr."""
    if event["event"] == "output":
        log.write(f"process {number}: {event['line']}\n")
    else:
        events.write(json.dumps({**event, "process": number}) + "\n")
