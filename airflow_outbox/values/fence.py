"""The fence row of a shard, with what stands beside it, as a leader finds it at take-over: values that table, engine
and commands share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self
from uuid import UUID

from airflow_outbox.values.records import Snapshot

PRIMARY = "primary"
"""The name of an outbox's only cluster."""
AttachHow = Literal["accept", "reset"]
_GIVEN_UP = " (given up)"  # no producer's transactional id ends so: it ends with a number


def recorded_ids(transactional_ids: Iterable[str], *, given_up: Iterable[str]) -> list[str]:
    """Return producers' ids as the fence row records them. Those given up are among the ids, too: an earlier release
    fences all of them.
    """
    return [*transactional_ids, *(name + _GIVEN_UP for name in given_up)]


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """Operators' requests to a leader:

    - to mark nothing for a while
    - to let another member lead
    - to bring about another number of shards (None: no other)
    - to let a cluster count again that is owed records (None: none): with what it has alone (`accept`), from now on,
      since it is empty (`reset`), or (None) with all that it missed

    `attaches`: a leader has begun to let it count, and no shard but the first is led meanwhile.
    """

    paused: bool = False
    handover: bool = False
    shards: int | None = None
    attach: str | None = None
    attach_how: AttachHow | None = None
    attaches: bool = False


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """A database's history: its system identifier, its timeline, the outbox's table oid, and the database's own (None:
    an earlier release recorded this history).
    """

    system_identifier: int
    timeline: int
    table_oid: int
    database_oid: int | None


@dataclass(frozen=True, slots=True)
class LedgerPosition:
    """The ledger as Postgres knows it.

    - `topic_id`: the Kafka id of its topic (None: no leader has used it yet)
    - `batch`: the last batch known to be purged, with all before it
    - `offset`: where that batch's first record is in the ledger
    - `highest_id`: the highest id of a published record
    """

    topic_id: str | None = None
    batch: int = 0
    offset: int = 0
    highest_id: int = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """The records that a cluster had alone when it was accepted: it does not get them a second time.

    Runs of `ids` of the outbox, in this incarnation, and of `numbers` of records that had been parked.
    """

    incarnation: int
    ids: tuple[tuple[int, int], ...] = ()
    numbers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The row of a shard on one cluster: its `witness`, the ids of its producers (`recorded_ids`), and what it had
    alone (None: nothing).
    """

    witness: LedgerPosition = field(default_factory=LedgerPosition)
    transactional_ids: tuple[str, ...] = ()
    skipped: Skipped | None = None


@dataclass(frozen=True, slots=True)
class Flushed:
    """How far everything is published, as of the last witnessed batch.

    - `watermark`: the newest snapshot whose visible transactions are all published (None: none is known)
    - `batch`: the last batch up to which all batches hold only records of such transactions
    - `topics`: the records of each topic published by then, in this incarnation
    - `uncovered`: those in the batches after it
    """

    watermark: Snapshot | None = None
    batch: int = 0
    topics: Mapping[str, int] = field(default_factory=dict)
    uncovered: Mapping[str, int] = field(default_factory=dict)

    def with_more(self, counts: Iterable[Mapping[str, int]]) -> Self:
        """Return the same with more batches published."""
        uncovered = Counter(self.uncovered)
        for more in counts:
            uncovered.update(more)
        return replace(self, uncovered=dict(uncovered))

    def behind(self, earlier: Self) -> Self:
        """Return the same published batches under an earlier watermark."""
        counts = Counter(self.topics) + Counter(self.uncovered)
        return replace(earlier, uncovered=dict(counts - Counter(earlier.topics)))


@dataclass(frozen=True, slots=True)
class Fence:
    """The fence row after a take-over, with the ledger's row and the outbox's, and what the database says of itself.

    - `delivery`: the mode in which the outbox was last harvested (None: never)
    - `transactional_ids`: the ids of that harvest's producers, and which were given up (`recorded_ids`)
    - `recorded`, `present`: the history that this incarnation's first leader found, and today's
    - `last_drawn`: the last id that the sequence gave out (0: none)
    - `beats`: how often leaders have said here that they are alive
    - `next_transaction_id`: an upper bound of the transaction ids in use
    - `newest_transaction_id`: the highest one in the outbox that is not below it (0: none)
    - `halted`: why harvesting was stopped until `adopt` (None: it was not)
    - `begun_view`: the last view that began to harvest. It alone can have published what the witness does not know of
      (None: an earlier release harvested last, or nobody).
    - `layout`: how many times the outbox got another number of shards, from 1; `slots`: the shard's slots (None: all)
    - `primary`: the cluster of `witness` and `transactional_ids`; `backups`: the rows of the others that count;
      `owed`: of those that do not, and will get what they miss
    - `begun_primary`: the primary when `begun_view` began (None: nobody has)
    - `dormant`: the shards that have batches, but no slots in this layout
    - `membership`: how many times the outbox got other clusters, or clusters other parts, from 1
    """

    request: OperatorRequest
    outbox_id: UUID
    incarnation: int
    delivery: str | None
    transactional_ids: tuple[str, ...]
    recorded: DatabaseIdentity
    present: DatabaseIdentity
    witness: LedgerPosition
    last_drawn: int
    beats: int
    next_transaction_id: int
    newest_transaction_id: int
    halted: str | None = None
    flushed: Flushed = Flushed()
    begun_view: UUID | None = None
    shard: int = 0
    layout: int = 1
    slots: tuple[int, ...] | None = None
    primary: str = PRIMARY
    backups: Mapping[str, LedgerRow] = field(default_factory=dict)
    owed: Mapping[str, LedgerRow] = field(default_factory=dict)
    begun_primary: str | None = None
    dormant: tuple[int, ...] = ()
    membership: int = 1

    @property
    def is_promoted(self) -> bool:
        """Whether the last view that began had another primary."""
        return self.begun_primary not in (None, self.primary)

    @property
    def clusters(self) -> Sequence[str]:
        """The clusters that count, the primary first."""
        return self.primary, *self.backups

    def on(self, cluster: str) -> Fence:
        """Return the fence row as it concerns one of these clusters, or one that is owed records."""
        if cluster == self.primary:
            return self
        row = self.backups[cluster] if cluster in self.backups else self.owed[cluster]
        return replace(self, witness=row.witness, transactional_ids=row.transactional_ids)

    @property
    def producers(self) -> frozenset[str]:
        """The transactional ids of all producers not known to be fenced."""
        return frozenset(name for name in self.transactional_ids if not name.endswith(_GIVEN_UP))

    @property
    def given_up(self) -> frozenset[str]:
        """Ids with no producer at work and no uncertain commit: only their last transaction has to end."""
        return frozenset(name.removesuffix(_GIVEN_UP) for name in self.transactional_ids if name.endswith(_GIVEN_UP))


@dataclass(frozen=True, slots=True)
class Purged:
    """A purge's result: how far Postgres' log is on disk, and how many seconds ago the record in the middle was stashed
    (None: nobody knows).
    """

    flushed: int
    age: float | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """A heartbeat's result: operators' wishes, and values that show if table or database were exchanged or set back.

    `halted` is why harvesting was stopped meanwhile, by another shard's leader (None: it was not).
    """

    request: OperatorRequest
    table_oid: int
    last_drawn: int
    beats: int
    halted: str | None = None


@dataclass(frozen=True, slots=True)
class ShardLook:
    """The part of a shard's row that all members go by.

    Its view (None: nobody has ever led), and whether anybody leads; for how many seconds the leader has been silent;
    and whether an operator has asked for a handover since it took over.
    """

    shard: int
    view: UUID | None
    is_led: bool
    silent_for: float
    hands_over: bool
