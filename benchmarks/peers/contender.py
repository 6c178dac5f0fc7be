"""The interface of a contender for a benchmark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from benchmarks.peers.processes import Child
from benchmarks.peers.rows import Layout
from benchmarks.peers.servers import Workspace


class Turn(ABC):
    """One run of a contender, whose tables and topics are made and which has not begun to publish."""

    @abstractmethod
    def begin(self) -> Child:
        """Let it publish what is in its table; return its process. Returns when it has begun, or just before.

        Raises ContenderError when it does not begin.
        """

    @abstractmethod
    def begun(self) -> float:
        """When it began to publish, by `time.monotonic()`. Asked for when all is published."""


class Contender(ABC):
    """One way to publish an outbox, with its settings."""

    layout: ClassVar[Layout]
    """How its table is filled."""
    timed_from: ClassVar[str]
    """The meaning of `Turn.begun`, in words."""

    wakes: str
    """How it learns of records, in words."""
    one_at_a_time: bool = False
    """Whether it has at most one record of a key in flight, and so is slow where there is only one key."""

    brokers: Sequence[int] = ()
    """The processes of brokers that it needs besides the benchmark's own."""

    def __init__(self, name: str, settings: Mapping[str, object] | None = None) -> None:
        """`name` is its name in the results; `settings` are its differences from its defaults."""
        self.name = name
        self.settings = dict(settings or {})

    @abstractmethod
    def turn(self, workspace: Workspace) -> AbstractContextManager[Turn]:
        """Make what it needs in a workspace; on exit its processes are gone. Raises ContenderError."""
