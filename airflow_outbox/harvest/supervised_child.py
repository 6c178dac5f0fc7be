"""The harvesting process as its supervisor sees it: configured by stdin, reporting by stdout, gone within a second.

Its arguments and its environment hold no secrets. It holds its stdin as a lifeline: it ends when the supervisor closes
the pipe, and when the supervisor is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from airflow_outbox.values.child_environment import without_airflow

# -P: don't import from the folder of the script. Without debug ranges a traceback has no carets, and code is smaller.
COMMAND = (sys.executable, "-P", "-X", "no_debug_ranges", str(Path(__file__).with_name("child.py")))
ENVIRONMENT = {"MALLOC_ARENA_MAX": "4"}
"""In the child's environment, unless the triggerer's says otherwise: each arena that a thread makes costs memory."""
END_SECONDS = 0.95  # it ends itself within 0.9 s
LONGEST_LINE = 1024 * 1024
_CHUNK = 65536


class HarvestChild:
    """A harvesting process. `start` makes one; `end` must be called, and may be called again."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls,
        config: Mapping[str, Any],
        *,
        until: str,
        relays_tokens: bool = False,
        metrics_at: tuple[str, int] | None = None,
        command: Sequence[str] = COMMAND,
        also: Mapping[str, Any] | None = None,
    ) -> Self:
        """Start a process that harvests by `config` (as OutboxHook.harvest_config makes it) until `until`.

        With `relays_tokens` it waits for Kafka tokens, which `tell` sends. It serves metrics and health at the host and
        port `metrics_at`, unless None. `also` is told it, too: another `command` may take more.
        """
        # A session of its own: the triggerer decides which signals to its process group it passes on.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
            env={**ENVIRONMENT, **without_airflow()},
        )
        child = cls(process)
        try:
            first = {"config": config, "until": until, **({"relays_tokens": True} if relays_tokens else {})}
            first |= {} if metrics_at is None else {"metrics_at": metrics_at}
            first |= also or {}
            await child.tell(json.dumps(first))
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    async def tell(self, line: str) -> None:
        """Send a line to the process' stdin. Nothing happens when it is dead: its exit status will tell."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The process's events, until it closes its output.

        A line that is no event comes as `{"event": "output", "line": …}`.
        """
        assert self._process.stdout is not None
        async for line in _lines(self._process.stdout):
            yield parse_event(line)

    async def end(self) -> None:
        """Shut the process down gracefully, or else by SIGKILL, within a second. Nothing happens when it has ended."""
        process = self._process
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                # Not process.terminate(): it polls the process, and could so take the exit status that asyncio waits
                # for.
                os.kill(process.pid, signal.SIGTERM)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(END_SECONDS):
                        await process.wait()
            finally:  # also when the wait is cancelled
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def parse_event(line: str) -> dict[str, Any]:
    """The event that a line of output holds, or the line itself as an event of the kind `output`."""
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            return event
    return {"event": "output", "line": line}


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines that are not empty, also a last one without its end. For a very long line only the beginning is kept."""
    begun = bytearray()
    while chunk := await stream.read(_CHUNK):
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            begun += part[: LONGEST_LINE - len(begun)]
            if begun:
                yield begun.decode("utf-8", "replace")
            begun.clear()
        begun += rest[: LONGEST_LINE - len(begun)]
    if begun:
        yield begun.decode("utf-8", "replace")
