"""One harvest in several processes: each is a member, so the shards are spread over them, and over several cores.

They begin and end together. Where one can't go on, all end: whoever started the harvest learns which, and starts it
again. A supervisor that is killed takes the processes along, because their stdin closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_outbox.errors import HarvestProcessError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.supervised_child import COMMAND, HarvestChild

EventReport = Callable[[int, Mapping[str, Any]], None]
_GRACEFUL = ("drained", "time")


async def harvest_in_processes(
    config: HarvestConfig,
    *,
    until: str,
    report: EventReport,
    stop: asyncio.Event,
    metrics_at: tuple[str, int] | None = None,
    command: Sequence[str] = COMMAND,
) -> None:
    """Run as many processes as the configuration says, until all have reached `until`, or until `stop`.

    Each event goes to `report`, with the process's number, from 1. The first process serves metrics and health at the
    host and port `metrics_at`, each other one at the next port; with port 0, each at any free one.

    Raises ConfigurationError for a configuration that can't be passed to processes, HarvestProcessError when one of
    them could not go on. No process is left then.
    """
    settings = config.as_settings()
    children: list[HarvestChild] = []
    following: set[asyncio.Task[None]] = set()
    stopping = asyncio.create_task(stop.wait())
    try:
        for number in range(1, config.processes + 1):
            child = await HarvestChild.start(
                settings, until=until, metrics_at=_own_port(metrics_at, number), command=command
            )
            children.append(child)
            whole = f"process {number} of {config.processes}"
            following.add(asyncio.create_task(_follow(child, number, whole, report)))
        left = {*following}
        while left and not stop.is_set():
            ended, _ = await asyncio.wait({*left, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in ended & left:
                left.discard(task)
                task.result()
    finally:
        stopping.cancel()
        await asyncio.gather(*(child.end() for child in children))
        await asyncio.gather(*following, return_exceptions=True)  # to the last events


async def _follow(child: HarvestChild, number: int, whole: str, report: EventReport) -> None:
    """Report a process's events to its end. Raises HarvestProcessError unless that is the harvest's."""
    reason, last_error = None, None
    async for event in child.events():
        report(number, event)
        if event["event"] == "ended":
            reason = event.get("reason")
        elif event["event"] == "error":
            last_error = event.get("error")
    await child.end()
    if reason not in _GRACEFUL:
        raise HarvestProcessError(f"{whole} {_how_it_ended(child.status, reason, last_error)}")


def _how_it_ended(status: int | None, reason: str | None, error: str | None) -> str:
    if reason is not None:
        return "was stopped, and so all were. Start the harvest again"
    if status is not None and status < 0:
        return f"was killed by signal {-status}, so all were stopped. Start the harvest again"
    why = error or f"it ended with status {status}, and its output says why"
    return f"could not go on, so all were stopped: {why}"


def _own_port(metrics_at: tuple[str, int] | None, number: int) -> tuple[str, int] | None:
    if metrics_at is None or metrics_at[1] == 0:
        return metrics_at
    return metrics_at[0], metrics_at[1] + number - 1
