"""An event loop whose time is simulated: it never waits, it lets the clock jump to the next timer.

What runs on it is repeatable.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class StuckError(Exception):
    """Nothing will ever happen again: every task waits, and no timer is set."""


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    loop: SimulatedLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError
        self.loop.now += max(timeout, 0)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Its `time()` is `now`, in simulated seconds from 0. No threads, no I/O."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def simulate(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end in simulated time."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
