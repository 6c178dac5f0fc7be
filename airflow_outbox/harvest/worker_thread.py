"""A thread for blocking calls, awaited from the event loop, and a watchdog that notices when it is held up.

A thread shows *signs of life*: when a call begins or ends, and each time that it wakes up while it waits for a server.
A slow server silences no thread. A disk, a name look-up or a debugger may, and so may anything else that holds it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class SignsOfLife:
    """The signs of one thread, called `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.works = False  # a thread that has nothing to do shows no signs
        self.shown = 0
        self.may_be_silent = 0.0

    def show(self, *, may_be_silent: float = 0.0) -> None:
        """Show a sign. The next one may come this many seconds late, as after a call that waits for a server."""
        self.may_be_silent = may_be_silent
        self.shown += 1


class Watchdog:
    """Watches threads for signs of life. Threads may be added and forgotten from any thread."""

    def __init__(self) -> None:
        self._silences: dict[SignsOfLife, tuple[int, float]] = {}

    def watch(self, signs: SignsOfLife) -> None:
        self._silences[signs] = (signs.shown, 0.0)

    def forget(self, signs: SignsOfLife) -> None:
        """Watch a thread no longer. Once more does nothing."""
        self._silences.pop(signs, None)

    def held_up(self, *, passed: float, timeout: float) -> str | None:
        """Return the name of a thread that works and has shown no sign for `timeout` seconds; None if there is none.

        `passed` is how many seconds have passed since the last call, apart from those in which the process was stopped.
        """
        held_up = None
        for signs, (shown, silence) in [*self._silences.items()]:
            is_silent = signs.works and signs.shown == shown
            silence = silence + passed if is_silent else 0.0
            if signs in self._silences:
                self._silences[signs] = (signs.shown, silence)
                if silence > timeout + signs.may_be_silent:
                    held_up = signs.name
        return held_up


class Worker:
    """Runs calls one after the other in a thread of its own.

    The thread is a daemon, unlike an executor's: a call that never returns, to a silent server, does not keep the
    process from ending. A caller that is cancelled stops waiting; its call still runs to its end.
    """

    def __init__(
        self,
        name: str,
        *,
        watchdog: Watchdog | None = None,
        when_idle: Callable[[], object] | None = None,
        interval: float = 1.0,
    ) -> None:
        """`watchdog` watches the thread until `end`. `when_idle` is called after every `interval` seconds without
        another call.
        """
        self.signs = SignsOfLife(name)
        self._watchdog = watchdog
        if watchdog is not None:
            watchdog.watch(self.signs)
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
        """End the thread after the calls that are already waiting. Nobody depends on these."""
        if self._watchdog is not None:
            self._watchdog.forget(self.signs)
        self._calls.put(None)

    def _run(self) -> None:
        signs = self.signs
        while (call := self._next()) is not None:
            signs.shown, signs.may_be_silent, signs.works = signs.shown + 1, 0.0, True
            call()
            signs.works = False

    def _next(self) -> Callable[[], None] | None:
        while self._when_idle is not None:
            try:
                return self._calls.get(timeout=self._interval)
            except queue.Empty:
                self._when_idle()
        return self._calls.get()
