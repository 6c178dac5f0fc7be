"""What the engine needs of the world: a table, a log, an election, and somewhere to report events.

The engine is asyncio code and nothing else: it starts no threads, and its only clock is the event loop's. So it runs
unchanged over Postgres and Kafka, and over simulated ones on an event loop whose time is simulated too. The real and
the simulated ports pass one conformance suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.protocol.election import Change, Standing
from airflow_outbox.table import MarkedRecord, Request


class Events(Protocol):
    """Where the engine reports what happens, as the name of an event and its fields."""

    def __call__(self, event: str, /, **fields: object) -> None: ...


class Table(Protocol):
    """An outbox and its fence row.

    Any method may raise PostgresError; what it was asked to do may then have happened or not.
    """

    async def take_over(self, view: UUID) -> Request:
        """Write a new view into the fence row.

        Once it returns, no statement of an older view can change anything any more. What operators ask for is returned.
        """

    async def mark(self, view: UUID, *, max_records: int, max_bytes: int) -> list[MarkedRecord]:
        """Claim the next records, in id order, unmarked or marked by another view; none when nothing is due.

        Raises FencedError.
        """

    async def purge(self, view: UUID, ids: Sequence[int]) -> None:
        """Delete records of this view. Raises FencedError."""

    async def reset(self, view: UUID, ids: Sequence[int]) -> None:
        """Take this view's mark from records. Raises FencedError."""

    async def require_fence(self, view: UUID) -> None:
        """Raise FencedError unless the fence is this view's; PostgresUnreachableError unless Postgres answers in time.

        Waits for no lock, and for no other call.
        """

    async def heartbeat(self, view: UUID, *, published: int, in_flight: int, rate: float) -> Request:
        """Say in the fence row that the view is alive and has published so many more records.

        Returns what operators ask for. Raises FencedError.
        """

    async def note_error(self, view: UUID, error: str) -> None:
        """Leave the reason for a failure in the fence row."""

    async def is_empty(self) -> bool:
        """Whether every committed record has been published and purged, by whichever member."""

    async def close(self) -> None:
        """End the connections. What is under way on them may still happen."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one record: delivered when `error` is None, else undelivered or uncertain."""

    record: MarkedRecord
    error: OutboxError | None


class Log(Protocol):
    """A producer to Kafka, for one term. Each record that was sent is reported exactly once."""

    def send(self, record: MarkedRecord) -> None:
        """Publish a record, some time soon.

        Never waits and never raises: a record that can't go out is reported as undelivered.
        """

    async def deliveries(self) -> Sequence[Delivery]:
        """Wait for reports, and return all that have come in since the last call."""

    async def close(self) -> None:
        """Give up what is unreported, which may then be published or not, and end."""


class LogFactory(Protocol):
    """Makes the log of a new term. Raises KafkaError."""

    async def __call__(self) -> Log: ...


class Election(Protocol):
    """This member's part in the election of the shards' leaders."""

    def standing(self, shard: int) -> Standing: ...

    def changes(self) -> AsyncIterator[tuple[int, Change]]:
        """When to lead a shard and when to stand by.

        After a StandBy, the group waits (for at most the heartbeat timeout) for `released`.
        """

    def released(self, shard: int) -> None:
        """Nothing of the shard's ended term is under way any more: a successor may begin."""

    def fenced(self, shard: int) -> None:
        """The shard's fence names another view."""

    def resign(self, reason: str) -> None:
        """Leave the group until `rejoin`: others are to lead what this member can't serve."""

    def rejoin(self) -> None:
        """Be a member again."""

    async def close(self) -> None:
        """Leave the group, so that a successor is chosen at once, and end `changes`."""
