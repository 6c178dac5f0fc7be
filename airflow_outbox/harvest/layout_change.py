"""Another number of shards: how it is brought about, and how a member's parts tell each other that it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol
from uuid import UUID

NO_VIEWS: Mapping[int, UUID] = {}


class Reshard(Protocol):
    """Gives the outbox this many shards; the caller leads the first one, under one of the views `after`.

    Returns the new layout's view of each shard, under which nobody leads yet. Raises FencedError, HistoryError,
    KafkaError, PostgresError.
    """

    async def __call__(self, shards: int, *, view: UUID, after: Collection[UUID]) -> Mapping[int, UUID]: ...


class LayoutChange(asyncio.Event):
    """Set once the outbox has another layout than the one that a member was assembled for.

    `views` are those that this member has written with the new layout; empty if another member has written it. Whoever
    knows them can lead the new shards at once, and follows nobody that the group has elected meanwhile.
    """

    views: Mapping[int, UUID] = NO_VIEWS

    def written(self, views: Mapping[int, UUID]) -> None:
        """This member has written the layout, with these views."""
        self.views = views
        self.set()
