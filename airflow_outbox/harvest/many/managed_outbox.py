"""One outbox of a list, as the process knows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

from airflow_outbox.harvest.many.awake import AwakeOutbox
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.resting import FoundOutbox, RestingTable

_SHORTEST_DELAY = 1.0
_LONGEST_DELAY = 30.0


@dataclass(slots=True)
class Backoff:
    """When something that has failed may be tried again: after a second, then ever longer, up to half a minute."""

    at: float = float("-inf")
    delay: float = _SHORTEST_DELAY

    def failed(self, now: float) -> float:
        """Return in how many seconds to try again."""
        delay, self.delay = self.delay, min(2 * self.delay, _LONGEST_DELAY)
        self.at = now + delay
        return delay

    def succeeded(self) -> None:
        self.at, self.delay = float("-inf"), _SHORTEST_DELAY


@dataclass(slots=True)
class ManagedOutbox:
    """An outbox that was found, and what this process does with it.

    - `role`: the part of the list that it belongs to, whose leader harvests it
    - `view`: the view under which it rests here (None: it does not)
    - `awake`: what harvests it (None: it rests), and `moving`: the task that wakes it or lays it to rest
    - `waits_since`: since when it has something to do (None: it has not)
    - `stays`: why it is not harvested: halted, paused, held by another member, or in trouble (None: it may be)
    - `looking`, `waking`: when a look, or a start, that has failed may be tried again
    """

    found: FoundOutbox
    table: RestingTable
    role: int
    view: UUID | None = None
    awake: AwakeOutbox | None = None
    moving: asyncio.Task[None] | None = None
    waits_since: float | None = None
    has_parked: bool = False
    stays: str | None = None
    looking: Backoff = field(default_factory=Backoff)
    waking: Backoff = field(default_factory=Backoff)
    tended_at: float = float("-inf")

    @property
    def name(self) -> OutboxName:
        return self.found.name

    @property
    def is_awake(self) -> bool:
        """Whether it takes a place."""
        return self.awake is not None or self.moving is not None

    def may_wake(self, now: float) -> bool:
        """Whether it rests here, and may be woken."""
        return self.view is not None and not self.is_awake and self.stays is None and now >= self.waking.at
