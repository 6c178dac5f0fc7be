"""What a benchmark needs of a contender."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import ClassVar

from benchmarks.peers.processes import Child
from benchmarks.peers.rows import Layout
from benchmarks.peers.scene import Place


class Turn(ABC):
    """One run of a contender, whose tables and topics are made and which has not begun to publish."""

    @abstractmethod
    def begin(self) -> Child:
        """Let it publish what is in its table; its process. Returns when it has begun, or just before.

        Raises ContenderError when it does not come so far.
        """

    @abstractmethod
    def begun(self) -> float:
        """When it began to publish, by `time.monotonic()`. Asked for when all is published."""


class Contender(ABC):
    """One way to publish an outbox, with its settings."""

    layout: ClassVar[Layout]
    """How its table is filled."""
    timed_from: ClassVar[str]
    """What `Turn.begun` is, in words."""

    wakes: str
    """How it gets to know of records, in words."""
    one_at_a_time: bool = False
    """Whether it has at most one record of a key in flight, and so is slow where there is but one key."""

    def __init__(self, name: str, settings: Mapping[str, object] | None = None) -> None:
        """`name` is what the results call it; `settings` are what distinguishes it from its defaults."""
        self.name = name
        self.settings = dict(settings or {})

    @abstractmethod
    def turn(self, place: Place) -> AbstractContextManager[Turn]:
        """Make what it needs at a place; on exit its processes are gone. Raises ContenderError."""
