"""A thread for blocking calls, awaited from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """Runs calls one after the other in a thread of its own.

    The thread is a daemon, unlike an executor's: a call that never returns, to a silent server, does not keep the
    process from ending. A caller that is cancelled stops waiting; its call still runs to its end.
    """

    def __init__(self, name: str, *, when_idle: Callable[[], object] | None = None, interval: float = 1.0) -> None:
        """`when_idle` is called after every `interval` seconds without another call."""
        self._when_idle = when_idle
        self._interval = interval
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
        """Await `function(*args, **kwargs)`. Raises what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def settle(setter: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                setter(value)

        def run() -> None:
            try:
                outcome: tuple[Callable[[Any], None], Any] = (future.set_result, function(*args, **kwargs))
            except Exception as error:
                outcome = (future.set_exception, error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, *outcome)

        self._calls.put(run)
        return await future

    def run(self, function: Callable[[], object]) -> None:
        """Run a call after those that are already waiting. Its result or error is dropped."""

        def run() -> None:
            with contextlib.suppress(Exception):
                function()

        self._calls.put(run)

    def end(self) -> None:
        """End the thread after the calls that are already waiting."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        while self._when_idle is not None:
            try:
                return self._calls.get(timeout=self._interval)
            except queue.Empty:
                self._when_idle()
        return self._calls.get()
