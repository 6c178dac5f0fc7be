"""A handover of one shard of several, decided from what the shards' rows show to every member.

A consumer group spreads partitions evenly, so it can't be asked to move a single one. Therefore the group keeps the
owner, and the owner steps aside: it finishes what is in flight and lets go. Another member sees that in Postgres, and
stands in: it takes over, but only after the very view that has let go, so one of several succeeds. The owner takes the
shard back when nobody has followed, and when the one that stands in has ended or is silent. A member to which the group
gives the shard later leads it as usual, whoever stands in.

The fences make all of this safe; this decides only who tries.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from airflow_outbox.values.fence import ShardLook


@dataclass(frozen=True, slots=True)
class StandIn:
    """Lead a shard without the group's word: its leader has let go of it, or this member has written the layout.

    `after` is the only view to follow.
    """

    after: UUID


@dataclass(frozen=True, slots=True)
class Aside:
    """This member let go of a shard under `view`, at the time `since` of the caller's clock."""

    view: UUID
    since: float

    def is_over(self, look: ShardLook, now: float, *, patience: float) -> bool:
        """Whether nobody has followed for this many seconds, or nobody leads any more who has."""
        if look.view == self.view:
            return now - self.since > patience
        return not look.is_led or look.silent_for > patience


def stand_in(look: ShardLook) -> StandIn | None:
    """Return how to lead a shard that this member neither owns nor has let go of itself; None: it is not offered."""
    return StandIn(look.view) if look.hands_over and not look.is_led and look.view is not None else None
