"""An event loop whose time is simulated: it never waits, it lets the clock jump to the next timer.

A run on it is repeatable. It knows *processes*: what a process has begun (its tasks, its timers, the answers that
reach it) runs while the process does. One that is stopped does nothing until it is continued, and then all that it
has missed at once; one that is killed never does anything again, not so much as a `finally`.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

Result = TypeVar("Result")

_ROUNDS, _PATIENCE = 5, 60.0  # how often tasks are told to end, and for how many seconds they may go on after that


class StuckError(Exception):
    """Nothing will ever happen again: every task waits, and no timer is set."""


class Handle:
    """A call that is due some time. As asyncio's own, but lighter: there are thousands in a history."""

    __slots__ = ("_args", "_callback", "_when", "context", "is_cancelled")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, when: float
    ) -> None:
        self._callback = callback
        self._args = args
        self._when = when
        self.context = copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when

    @property
    def name(self) -> str:
        """The function that is called, or the coroutine of the task that goes on."""
        task = getattr(self._callback, "__self__", None)
        if isinstance(task, asyncio.Task):
            return str(task.get_coro().__qualname__)
        return getattr(self._callback, "__qualname__", type(self._callback).__name__)

    def run(self) -> None:
        self.context.run(self._callback, *self._args)


class SimulatedProcess:
    """A process of the simulated world."""

    __slots__ = ("context", "killed", "missed", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        self.killed = False
        self.missed: list[Handle] = []
        self.context = copy_context()
        """Everything run in it, with all that follows from it, belongs to the process."""
        self.context.run(_PROCESS.set, self)
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimulatedLoop):
            loop.processes.append(self)

    def stop(self) -> None:
        """As SIGSTOP does."""
        self.stopped = True

    def go_on(self) -> None:
        """As SIGCONT does."""
        self.stopped = False
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.ready.extend(self.missed)
        self.missed.clear()

    def kill(self) -> None:
        """As SIGKILL does."""
        self.killed = True


_PROCESS: ContextVar[SimulatedProcess | None] = ContextVar("process", default=None)
ELSEWHERE = Context()
"""Everything run in it belongs to no process: servers, and the network."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Its `time()` is `now`, in simulated seconds from 0. No threads, no I/O; only what the engine needs of a loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._set = 0
        self._tasks: list[asyncio.Task[Any]] = []  # strong references: nothing of a killed process is to be collected
        self.processes: list[SimulatedProcess] = []

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **kwargs)
        self._tasks.append(task)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context, self.now)
        self.ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context, when)
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A task's exception waits for whoever awaits the task."""

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end, and end the tasks that are left."""
        asyncio._set_running_loop(self)
        try:
            main = self.create_task(coroutine)
            self._run_until(main.done)
            return main.result()
        finally:
            self._end_tasks()
            asyncio._set_running_loop(None)

    def _run_until(self, done: Callable[[], bool]) -> None:
        ready, timers = self.ready, self._timers
        while not done():
            if not ready:
                if not timers:
                    raise StuckError
                when, _, timer = heapq.heappop(timers)
                if timer.is_cancelled:
                    continue
                self.now = max(self.now, when)
                ready.append(timer)
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            process = handle.context.get(_PROCESS)
            if process is None or not (process.stopped or process.killed):
                handle.run()
            else:
                process.missed.append(handle)

    def _end_tasks(self) -> None:
        for process in self.processes:
            process.killed = process.stopped = False
            self.ready.extend(process.missed)
        for _ in range(_ROUNDS):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            limit = self.now + _PATIENCE
            with contextlib.suppress(StuckError):
                self._run_until(lambda left=left, limit=limit: self.now > limit or all(t.done() for t in left))  # type: ignore[misc]


def simulate(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end in simulated time."""
    return SimulatedLoop().run(coroutine)
