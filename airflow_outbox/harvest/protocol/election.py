"""Fast NELI: who leads, decided from what a Kafka consumer group says and from heartbeats that come back.

The members of an outbox are consumers of one group on a topic. The group coordinator gives a partition to at most one
member. This owner leads the shards that belong to that partition (shard modulo partitions). Ownership alone could be
out of date: a member that is cut off learns of a rebalance last. So the owner also sends heartbeats to its partition
and reads them back, which proves that it reaches the cluster and still reads that partition.

The protocol descends from goharvest's (NELI, 'non-exclusive leader induction'). Three things are new: the state FENCED,
only heartbeats sent after a step-down count for leading again, and the group has to confirm it.

States of one member for one partition::

                     assigned
         ┌────────────────────────────────► LEADER ───── fenced by a successor ────► FENCED
         │       a heartbeat sent after       │                                        │
      STANDBY ◄── the step-down was read, ────┤ no heartbeat read back in time         │ a heartbeat sent after the
         ▲        and the group confirms      │ or revoked                             │ fencing was read, and the
         │                                    │                                        │ group confirms: LEADER
         └────────────────────────────────────┴──────────────── revoked ───────────────┘

Invariants:

- LEADER or FENCED implies owner of the partition, as far as this member knows.
- A member that leads has read back a heartbeat that it sent, as this owner, no longer ago than `heartbeat_timeout`, or
  became the owner no longer ago than that. The time counts from when it was *sent*: a slow heartbeat proves little.
- A member that stepped down without losing the partition leads again only on a heartbeat that it sent after stepping
  down. The coordinator, asked since then, must also confirm that it is still a member of the present generation. So a
  process that was stopped does not lead on its old heartbeats. And if two members both believe that they own the
  partition, only one can come back: they do not fence each other in turn.

None of this makes leadership exclusive: clocks and pauses can always make two members believe that they lead. It makes
leadership *likely* exclusive; the fences (the fence row in Postgres, the producer's epoch in Kafka) make its effects
exclusive.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_NEVER = float("-inf")


class Standing(StrEnum):
    """A member's role for a partition, and so for its shards."""

    STANDBY = "standby"
    LEADER = "leading"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Lead:
    """Begin a term, under a view that was never used before."""


@dataclass(frozen=True, slots=True)
class StandBy:
    """End the term."""

    reason: str


Change = Lead | StandBy


class Candidate:
    """One member's part in the election for one partition.

    Times are in seconds on a monotonic clock of the caller's.
    """

    def __init__(self, heartbeat_timeout: float) -> None:
        self.standing = Standing.STANDBY
        self.is_owner = False
        self._heartbeat_timeout = heartbeat_timeout
        self._proven_at = _NEVER  # when the newest heartbeat that came back was sent
        self._stepped_down_at = _NEVER

    def assigned(self, now: float) -> Change | None:
        """The group made this member the partition's owner."""
        if self.is_owner:
            return None
        self.is_owner = True
        self._proven_at = now
        return self._lead()

    def revoked(self, reason: str = "the group gave the role to another member, or is rebalancing") -> Change | None:
        """The group took the partition away, this member lost it, or has left."""
        self.is_owner = False
        was, self.standing = self.standing, Standing.STANDBY
        return StandBy(reason) if was is Standing.LEADER else None

    def heartbeat_read(self, sent_at: float) -> None:
        """This member's heartbeat of `sent_at` came back."""
        if self.is_owner:
            self._proven_at = max(self._proven_at, sent_at)

    def wants_confirmation(self, now: float) -> bool:
        """Whether to ask the group if this member is still the owner; if so, it would lead again."""
        return (
            self.is_owner
            and self.standing is not Standing.LEADER
            and self._proven_at > self._stepped_down_at
            and now - self._proven_at < self._heartbeat_timeout
        )

    def confirmed(self, asked_at: float, now: float) -> Change | None:
        """The group, asked at `asked_at`, has confirmed that this member belongs to its present generation."""
        if self.wants_confirmation(now) and asked_at > self._stepped_down_at:
            return self._lead()
        return None

    def passed(self, now: float) -> Change | None:
        """Time passed. Call this at least as often as heartbeats are sent."""
        if self.standing is Standing.LEADER and now - self._proven_at > self._heartbeat_timeout:
            self.standing = Standing.STANDBY
            self._stepped_down_at = now
            return StandBy(f"no heartbeat was read back for {self._heartbeat_timeout:g} s")
        return None

    def fenced(self, now: float) -> None:
        """The fence named another view: the term is over. The group is not told."""
        if self.standing is Standing.LEADER:
            self.standing = Standing.FENCED
        self._stepped_down_at = now

    def _lead(self) -> Change:
        self.standing = Standing.LEADER
        return Lead()
