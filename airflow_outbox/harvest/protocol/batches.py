"""The units of work of a term: pieces, which have been read, and batches, each of which is one Kafka transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from uuid import UUID

from airflow_outbox.harvest.protocol.ledger import Entry, Extent, runs
from airflow_outbox.harvest.protocol.parking import Diversion
from airflow_outbox.values.fence import Fence
from airflow_outbox.values.pages import ID, Length, OutboxRow, total_size
from airflow_outbox.values.records import Snapshot
from airflow_outbox.values.refusals import Refusal

_NOTHING_SEEN = Snapshot(1, 1)


@dataclass(frozen=True)
class Piece:
    """Rows that go on together, and whether a batch may end with them.

    Some of their transactions may not be published, or have more rows to come (`protocol.atomic_batches`).
    """

    rows: Sequence[OutboxRow]
    within: Snapshot
    written: int
    ends: bool
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    streaming: Mapping[int, Length] = field(default_factory=dict)
    set_aside: Collection[int] = ()

    @cached_property
    def bytes(self) -> int:
        return total_size(self.rows)

    def divided(self, records: int) -> tuple[Piece, Piece]:
        """The first records, and the others."""
        return replace(self, rows=self.rows[:records]), replace(self, rows=self.rows[records:])


@dataclass(slots=True)
class Batch:
    """The contents of one Kafka transaction: batch `number` of the outbox.

    - `extents`: where its records are, by log and partition.
    - `size`: how many bytes of key and value were read for it.
    - `condemned`: source transactions that it parks whole.
    - `no_longer_slow`: source transactions in it that took too long before.
    - `committed_at`: when its commit had returned, by the clock that measures.
    """

    number: int
    ids: list[int] = field(default_factory=list)
    topics: Counter[str] = field(default_factory=Counter)
    extents: list[dict[tuple[str, int], Extent]] = field(default_factory=list)
    parked: Diversion[OutboxRow] = field(default_factory=Diversion)
    unparked: list[int] = field(default_factory=list)
    within: Snapshot = _NOTHING_SEEN
    written: int = 0
    size: int = 0
    may_end: bool = False
    condemned: frozenset[int] = frozenset()
    no_longer_slow: frozenset[int] = frozenset()
    may_be_free: bool = False
    committed_at: float = 0.0

    def divert(self, piece: Piece, diversion: Diversion[OutboxRow]) -> None:
        """Add a piece, divided like that, to the batch."""
        self.ids += [row[ID] for row in diversion.published]
        self.parked.refused |= diversion.refused
        self.parked.waiting += diversion.waiting
        self.parked.topics.update(diversion.topics)
        self.within, self.may_end = piece.within, piece.ends
        self.written = max(self.written, piece.written)
        self.size += piece.bytes

    def add(self, by_log: Sequence[Iterable[Extent]]) -> None:
        """Add published records: where they are on each log, the primary first."""
        if not self.extents:
            self.extents = [{} for _ in by_log]
        for extent in by_log[0]:
            self.topics[extent.topic] += extent.count
        for places, extents in zip(self.extents, by_log, strict=True):
            for extent in extents:
                place = extent.topic, extent.partition
                earlier = places.get(place)
                places[place] = extent if earlier is None else earlier.followed_by(extent)

    @property
    def read(self) -> int:
        """How many records were read from the outbox."""
        return len(self.ids) + len(self.parked.refused) + len(self.parked.waiting)

    @property
    def records(self) -> int:
        return self.read + len(self.unparked)

    def highest_id(self, last_drawn: int) -> int:
        """The highest id that was drawn from the sequence, which is at `last_drawn`."""
        groups = self.ids, self.parked.refused, self.parked.waiting
        highest = max((max(ids) for ids in groups if ids), default=0)
        return (
            highest
            if highest <= last_drawn
            else max((each for ids in groups for each in ids if each <= last_drawn), default=0)
        )

    def entry(self, *, view: UUID, fence: Fence, log: int = 0) -> Entry:
        """The batch's entry in a log's ledger."""
        return Entry(
            batch=self.number,
            view=view,
            incarnation=fence.incarnation,
            snapshot=self.within,
            runs=runs(self.ids),
            extents=tuple(self.extents[log].values()) if self.extents else (),
            parked=self.parked.groups(),
            unparked=runs(self.unparked),
            outbox_id=fence.outbox_id,
            shard=fence.shard,
        )
