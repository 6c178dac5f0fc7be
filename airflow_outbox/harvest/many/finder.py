"""Finds the outboxes of a list, and asks new ones who they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import UUID

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.many import watch
from airflow_outbox.harvest.many.connection_pool import ConnectionPool
from airflow_outbox.harvest.many.managed_outbox import Backoff
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.resting import FoundOutbox, find_outboxes
from airflow_outbox.values.outbox_list import OutboxPattern


class Complain(Protocol):
    """Tells of an error of an outbox, and in how many seconds it is tried again (None: nobody knows)."""

    def __call__(self, outbox: str, error: str, retry_in: float | None = None) -> None: ...


class OutboxFinder:
    """Finds the outboxes that match the patterns of a list, over the connection of `watching`.

    An outbox that can't be used is asked again after ever longer pauses, or at once when it was made again.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        *,
        watching: ConnectionPool,
        complain: Complain,
        now: Callable[[], float],
    ) -> None:
        """Raises ConfigurationError for a pattern that is none."""
        self._patterns = [OutboxPattern.parse(text) for text in patterns]
        self._watching = watching
        self._complain = complain
        self._now = now
        self._unusable: dict[OutboxName, tuple[int, Backoff]] = {}

    @property
    def unusable(self) -> int:
        """How many outboxes were found and can't be used."""
        return len(self._unusable)

    async def find(self) -> list[FoundOutbox]:
        """Return the outboxes that are there now. Raises PostgresUnreachableError."""
        there, unmet = await self._watching.call(lambda connection: find_outboxes(connection, self._patterns))
        for pattern in unmet:
            if pattern.is_a_name:
                self._complain(
                    pattern.text, f"there is no outbox {pattern.text}. Run `airflow-outbox init`, or leave it out"
                )
        return list(there)

    async def identify(self, new: Iterable[FoundOutbox]) -> list[tuple[FoundOutbox, UUID]]:
        """Return those that can be used, with their ids. Raises PostgresUnreachableError."""
        tried = [found for found in new if self._may_try(found)]
        identities = await self._watching.call(
            lambda connection: watch.identities(connection, [found.name for found in tried])
        )
        usable: list[tuple[FoundOutbox, UUID]] = []
        for found in tried:
            identity = identities[found.name]
            if isinstance(identity, OutboxError):
                _, backoff = self._unusable.setdefault(found.name, (found.oid, Backoff()))
                self._complain(str(found.name), str(identity), backoff.failed(self._now()))
            else:
                self._unusable.pop(found.name, None)
                usable.append((found, identity))
        return usable

    def _may_try(self, found: FoundOutbox) -> bool:
        """Whether an outbox that could not be used may be asked again: later, or because it was made again."""
        oid, backoff = self._unusable.get(found.name, (found.oid, Backoff()))
        if oid != found.oid:
            del self._unusable[found.name]
        return oid != found.oid or self._now() >= backoff.at
