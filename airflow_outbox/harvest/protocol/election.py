"""Fast NELI: who leads, decided from what a Kafka consumer group says and from heartbeats that come back.

The members of an outbox are consumers of one group on a topic with one partition a role. The group coordinator gives a
partition to at most one member: its owner, who leads the role. Ownership alone could be out of date (a member that is
cut off learns of a rebalance last), so the owner also sends heartbeats to its partition and reads them back: proof
that it reaches the cluster and still reads that partition. The protocol descends from goharvest's (NELI,
'non-exclusive leader induction'); what is new here is the state FENCED and that only heartbeats sent after a step-down
count for leading again.

States of one member for one role::

                    assigned
         ┌─────────────────────────────────► LEADER ──── fenced by a successor ───► FENCED
         │        a heartbeat sent after       │                                       │
      STANDBY ◄──── the step-down is read ─────┤ no heartbeat read back in time        │ a heartbeat sent after
         ▲                                     │ or revoked                            │ the fencing is read: LEADER
         └─────────────────────────────────────┴───────────────── revoked ─────────────┘

Invariants:

- LEADER or FENCED implies owner of the partition, as far as this member knows.
- A member that leads has read back a heartbeat that it sent, as this owner, no longer ago than `heartbeat_timeout`, or
  became the owner no longer ago than that. Measured from when it was *sent*: one that travelled long proves little.
- A member that stepped down without losing the partition leads again only on a heartbeat that it sent after stepping
  down. So a process that was stopped does not lead on what it had sent before, and two members do not fence each other
  in turn for ever.

None of this makes leadership exclusive: clocks and pauses can always make two members believe. It makes it *likely*
exclusive; the fences (the fence row in Postgres, and the producer's epoch in Kafka) make its effects exclusive.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Standing(StrEnum):
    """What a member is for a role."""

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
    """One member's part in the election of one role.

    Times are in seconds on any one monotonic clock of the caller's.
    """

    def __init__(self, heartbeat_timeout: float) -> None:
        self.standing = Standing.STANDBY
        self.is_owner = False
        self._heartbeat_timeout = heartbeat_timeout
        self._proven_at = float("-inf")
        self._stepped_down_at = float("-inf")

    def assigned(self, now: float) -> Change | None:
        """The group made this member the partition's owner."""
        if self.is_owner:
            return None
        self.is_owner = True
        return self._lead(now)

    def revoked(self) -> Change | None:
        """The group took the partition away, or this member lost it."""
        self.is_owner = False
        was, self.standing = self.standing, Standing.STANDBY
        return (
            StandBy("the group gave the role to another member or is rebalancing") if was is Standing.LEADER else None
        )

    def heartbeat_read(self, sent_at: float, now: float) -> Change | None:
        """A heartbeat came back that this member sent at `sent_at`."""
        if not self.is_owner:
            return None
        if self.standing is Standing.LEADER:
            self._proven_at = max(self._proven_at, sent_at)
            return None
        if sent_at > self._stepped_down_at and now - sent_at < self._heartbeat_timeout:
            return self._lead(sent_at)
        return None

    def passed(self, now: float) -> Change | None:
        """Time passed. To be called at least as often as heartbeats are sent."""
        if self.standing is Standing.LEADER and now - self._proven_at > self._heartbeat_timeout:
            self.standing = Standing.STANDBY
            self._stepped_down_at = now
            return StandBy(f"no heartbeat was read back for {self._heartbeat_timeout:g} s")
        return None

    def fenced(self, now: float) -> None:
        """The fence named another view: the term is over, without a word to the group."""
        if self.standing is Standing.LEADER:
            self.standing = Standing.FENCED
        self._stepped_down_at = now

    def _lead(self, proven_at: float) -> Change:
        self.standing = Standing.LEADER
        self._proven_at = proven_at
        return Lead()
