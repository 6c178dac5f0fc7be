"""Timers around calls, by stage: wall time and the thread's own processor time, without the stages that are inside."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Totals = dict[tuple[str, str], tuple[float, float, int]]
"""Wall seconds, processor seconds and calls, by thread and stage."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything counted until a moment."""

    moment: float
    """By `time.monotonic()`."""
    totals: Totals
    threads: Mapping[str, float]
    """Processor seconds of each of Python's threads that lives, by name."""
    process: float
    """Processor seconds of the process, with the threads that Python does not know."""


class Timers:
    """The timers of one process.

    Each thread has a stack of the stages that it is in. A stage that begins inside another one stops the other's clock
    until it ends, so each moment of a thread counts once.
    """

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: list[tuple[str, dict[str, list[float]]]] = []

    def around(self, owner: Any, name: str, stage: str, *, inside: str | None = None) -> None:
        """Time a method or function of `owner`; `inside`: only during a stage whose name begins like this."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            return self.timed(self._stage(stage, inside), original, *args, **kwargs)

        setattr(owner, name, timed)

    def timed(self, stage: str | None, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call in a stage (None: the present one)."""
        if stage is None:
            return call(*args, **kwargs)
        stack, totals = self._of_this_thread()
        self._switch(stack, totals, stage)
        try:
            return call(*args, **kwargs)
        finally:
            self._switch(stack, totals, None)

    def reading(self) -> Reading:
        totals: Totals = {}
        for thread, stages in list(self._all):
            for stage, (wall, cpu, calls) in list(stages.items()):
                before = totals.get((thread, stage), (0.0, 0.0, 0))
                totals[thread, stage] = (before[0] + wall, before[1] + cpu, before[2] + int(calls))
        threads: dict[str, float] = {}
        for thread_now in threading.enumerate():
            used = _processor_seconds(thread_now)
            if used is not None:
                threads[thread_now.name] = threads.get(thread_now.name, 0.0) + used
        return Reading(time.monotonic(), totals, threads, time.process_time())

    def _stage(self, stage: str, inside: str | None) -> str | None:
        if inside is None:
            return stage
        stack, _ = self._of_this_thread()
        return stage if stack and stack[-1][0].startswith(inside) else None

    def _of_this_thread(self) -> tuple[list[list[Any]], dict[str, list[float]]]:
        if not hasattr(self._mine, "stack"):
            self._mine.stack, self._mine.totals = [], {}
            self._all.append((threading.current_thread().name, self._mine.totals))
        return self._mine.stack, self._mine.totals

    @staticmethod
    def _switch(stack: list[list[Any]], totals: dict[str, list[float]], stage: str | None) -> None:
        """Enter a stage, or leave the present one (None); the time since the last switch goes where it was spent."""
        wall, cpu = time.monotonic(), time.thread_time()
        if stack:
            name, wall_before, cpu_before = stack[-1]
            total = totals.setdefault(name, [0.0, 0.0, 0])
            total[0] += wall - wall_before
            total[1] += cpu - cpu_before
            if stage is None:
                total[2] += 1
                stack.pop()
        if stage is not None:
            stack.append([stage, wall, cpu])
        elif stack:
            stack[-1][1:] = [wall, cpu]


def _processor_seconds(thread: threading.Thread) -> float | None:
    """Return Linux's count for a thread; None when it has ended.

    Python may still list an ended thread: one of C's that once called it. `pthread_getcpuclockid` crashes with those.
    """
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return None
