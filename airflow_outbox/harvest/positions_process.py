"""The process that replicates consumers' positions, while this member leads. It is started again when it ends.

Its looks are told to Postgres, where page, verdict and metrics find them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.ports import Events
from airflow_outbox.harvest.positions_telling import PositionsTeller
from airflow_outbox.harvest.supervised_child import HarvestChild

# Named by its path: this package must not import that one.
COMMAND = (sys.executable, "-P", "-X", "no_debug_ranges", str(Path(__file__).parents[1] / "positions" / "__main__.py"))
_LOOK_INTERVAL = 0.5
_RETRY_INTERVAL = 2.0


async def replicate_positions(
    config: HarvestConfig,
    *,
    leads: Callable[[], bool],
    events: Events,
    complain: Callable[[str], None],
    teller: PositionsTeller,
) -> None:
    """Have positions replicated as long as this member leads, if the configuration says so.

    Whatever goes wrong is told, and tried again: the harvest does without.
    """
    if not (config.positions.enabled and config.positions.groups and config.clusters):
        return
    try:
        settings = config.as_settings()
    except ConfigurationError as error:
        complain(f"positions: {error}. Or run `airflow-outbox positions run` beside the harvest")
        return

    def failed(problem: str) -> None:
        teller.failed(problem)
        complain(problem)

    telling = asyncio.create_task(teller.run())
    try:
        while True:
            if leads():
                try:
                    await _follow_one(settings, leads, events, failed, teller)
                except Exception as error:  # such as OSError, when there is no memory for another process
                    failed(f"positions are not replicated: {error!r}. It is tried again")
                if leads():
                    await asyncio.sleep(_RETRY_INTERVAL)
                else:
                    await teller.over()
            await asyncio.sleep(_LOOK_INTERVAL)
    finally:
        telling.cancel()
        await teller.over()


async def _follow_one(
    settings: dict[str, object],
    leads: Callable[[], bool],
    events: Events,
    failed: Callable[[str], None],
    teller: PositionsTeller,
) -> None:
    """Start the process, and pass on what it tells, until it ends or this member leads no longer."""
    child = await HarvestChild.start(settings, until="forever", command=COMMAND)

    async def end_with_leadership() -> None:
        while leads():
            await asyncio.sleep(_LOOK_INTERVAL)
        await child.end()

    ending = asyncio.create_task(end_with_leadership())
    try:
        async for event in child.events():
            fields = {name: value for name, value in event.items() if name not in ("event", "time")}
            if event["event"] == "positions_seen":
                teller.seen(**fields)
            else:
                events(event["event"], **fields)
        if leads():
            await child.end()
            failed(f"the process that replicates positions has ended with status {child.status}. It is started again")
    finally:
        ending.cancel()
        await child.end()
