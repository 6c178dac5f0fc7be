"""How far a command is that takes long: bars on stderr where that is a terminal, and nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from airflow_outbox.values.terminal import escaped

TellProgress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and of how much in all."""


def _silent(what: str, done: int, total: int) -> None:
    pass


@contextmanager
def bars(console: Console | None = None) -> Iterator[TellProgress]:
    """Show a bar for each thing that is told of, until the end, when they disappear."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _silent
        return
    tasks: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with _progress(console, *columns) as progress:

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(escaped(what), total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield tell


@contextmanager
def waiting(what: str, console: Console | None = None) -> Iterator[None]:
    """Show that something is waited for, and for how long already."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with _progress(console, *columns) as progress:
        progress.add_task(escaped(what), total=None)
        yield


def _progress(console: Console, *columns: ProgressColumn) -> Progress:
    # What a command prints meanwhile goes where it always goes: stdout may be a file.
    return Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
