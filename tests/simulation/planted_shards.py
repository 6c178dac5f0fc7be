"""Bugs of several shards: what belongs to one of them, or to one layout, is taken for another's."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from airflow_outbox.harvest.leadership import Leadership
from airflow_outbox.harvest.protocol.handover import Aside
from airflow_outbox.harvest.protocol.windows import Windows
from airflow_outbox.harvest.resharding import Resharding
from airflow_outbox.tickets.watermarks import Watermarks
from airflow_outbox.values.fence import ShardLook
from airflow_outbox.values.pages import Cursors, PageSnapshot
from airflow_outbox.values.records import Snapshot, Ticket


def reads_all(first: PageSnapshot, *, slots: Sequence[int] | None) -> Windows:
    return Windows(first)


class EndsWithItsPage(Windows):
    """Takes the window for ended when one of its slots has."""

    def advance(
        self, *, snapshot: Snapshot, last_id: int | None, complete: bool, cursors: Cursors | None = None
    ) -> Any:
        ended = cursors is None or len(cursors) < len(self.next.cursors or ())
        return super().advance(
            snapshot=snapshot, last_id=last_id, complete=complete or ended, cursors=None if ended else cursors
        )


class GoesOnTogether(Windows):
    """Goes on in all slots above the last id of any."""

    def advance(
        self, *, snapshot: Snapshot, last_id: int | None, complete: bool, cursors: Cursors | None = None
    ) -> Any:
        above = max((above for _, above in cursors or ()), default=0)
        together = tuple((slot, above) for slot, _ in cursors or ())
        return super().advance(snapshot=snapshot, last_id=last_id, complete=complete, cursors=together)


class CompletesOnlyTheFirst(Resharding):
    """Gives the outbox another layout while the other shards' leaders go on in the old one."""

    async def _take(self, number: int, view: UUID) -> None:
        return None


def looks_at_no_views(_: object, views: object) -> None:
    """Writes a layout although another member has taken over a shard since."""


class NeverTakesBack(Aside):
    """Leaves a shard for ever to others once it has handed it over."""

    def is_over(self, look: ShardLook, now: float, *, patience: float) -> bool:
        return False


class LeadsOn(Leadership):
    """Says that it hands a shard over, and goes on to lead it."""

    def _step_aside(self, view: UUID) -> None:
        super()._step_aside(view)
        self._leading = asyncio.create_task(self._lead([view]))


def any_has(_: object, record: object) -> bool:
    return True


def first_of(watermarks: Sequence[Snapshot | None]) -> Snapshot | None:
    return watermarks[0]


def sees_in_any(watermarks: Watermarks, ticket: Ticket) -> bool:
    watermarks.require(ticket)
    shards: Collection[Snapshot | None] = watermarks.shards
    return watermarks.doubt is None and any(each is not None and each.sees(ticket.transaction_id) for each in shards)
