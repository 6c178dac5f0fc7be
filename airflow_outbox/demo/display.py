"""The demo's output while it runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_LINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Progression:
    """How many records are where: committed to the outbox, published by the harvester, and read by the consumer."""

    stashed: int = 0
    published: int = 0
    seen: int = 0


class Display:
    """Lines and progress on standard error; standard output is left to the result.

    As a context manager it shows progress towards `total` records, starting with the first `update`.
    """

    def __init__(self, *, total: int) -> None:
        self.total = total
        self._console = Console(stderr=True, highlight=False)
        self._started = self._last_line = time.monotonic()
        self._shown = Progression()
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars = {
            name: self._progress.add_task(name, total=self.total) for name in Progression.__dataclass_fields__
        }
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Show a line, with the seconds since the start."""
        self._console.print(f"{time.monotonic() - self._started:5.1f} s  {text}", markup=False, soft_wrap=True)

    def update(self, progression: Progression) -> None:
        """Show the progress. Plain lines come only when something has changed, every few seconds at most."""
        for name, bar in self._bars.items():
            done = getattr(progression, name)
            self._progress.update(bar, completed=done, total=max(self.total, done))
        now = time.monotonic()
        due = now - self._last_line >= _LINE_SECONDS or progression.seen == self.total
        if not self._console.is_terminal and progression != self._shown and due:
            counts = (f"{name} {getattr(progression, name):,}" for name in self._bars)
            self.say(f"{', '.join(counts)} of {self.total:,}")
            self._last_line, self._shown = now, progression
