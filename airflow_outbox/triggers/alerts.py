"""Alerts: a function of the user's own is called when records are parked, retried or discarded, and for new verdicts.

The triggerer can't be given a function of a Dag, which it has not loaded. It gets an import path, and imports it.
Errors and delays there do not concern the harvest.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

from airflow_outbox.errors import ConfigurationError

_ALERTING = frozenset({"parked", "retried", "discarded", "verdict"})
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_MOST_WAITING = 100

LogMethod = Callable[..., None]


def check_path(path: str | None) -> str | None:
    """The import path of a function, if it can be one. Raises ConfigurationError."""
    if path is not None and not (isinstance(path, str) and _PATH.fullmatch(path)):
        raise ConfigurationError(
            f"alert_callback: {path!r} is not the import path of a function. Give text such as my_package.alerts.tell"
        )
    return path


class Alerts:
    """Calls the function at `path` in the background, one event after the other; with None it does nothing."""

    def __init__(self, path: str | None, log: LogMethod) -> None:
        self._path = path
        self._log = log
        self._waiting: deque[Mapping[str, Any]] = deque(maxlen=_MOST_WAITING)
        self._calling: asyncio.Task[None] | None = None
        self._was_healthy = True

    def tell(self, event: Mapping[str, Any]) -> None:
        """Call the function with an event of parking, or a new verdict, some time soon.

        It is not called because more records wait behind parked ones, nor for an outbox that is healthy from the start.
        If too many events wait, the oldest are dropped.
        """
        if self._path is None or event["event"] not in _ALERTING:
            return
        if event["event"] == "parked" and not event.get("refused"):
            return
        if event["event"] == "verdict":
            was_healthy, self._was_healthy = self._was_healthy, event.get("state") == "healthy"
            if was_healthy and self._was_healthy:
                return
        self._waiting.append(event)
        if self._calling is None or self._calling.done():
            self._calling = asyncio.create_task(self._call_all(self._path))

    async def finish(self, patience: float) -> None:
        """Wait for the remaining calls, for at most `patience` seconds."""
        if self._calling is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._calling

    def cancel(self) -> None:
        """Call nothing more."""
        if self._calling is not None:
            self._calling.cancel()

    async def _call_all(self, path: str) -> None:
        while self._waiting:
            event = self._waiting.popleft()
            try:
                function = await asyncio.to_thread(resolve_name, path)
                if inspect.iscoroutinefunction(function):
                    await function(event)
                else:
                    await asyncio.to_thread(function, event)
            except Exception as error:
                self._log(logging.WARNING, f"alert_callback {path} has failed: {error!r}")
