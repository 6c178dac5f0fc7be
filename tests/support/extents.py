"""An extents topic in memory, written and read by the real code, and indexes over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from airflow_outbox.harvest.kafka.page_reader import PartitionOffsets
from airflow_outbox.harvest.protocol.extents import ExtentsRecord, ExtentsState, parsed
from airflow_outbox.harvest.protocol.ledger import Entry, Extent
from airflow_outbox.positions.index import BlockIndex
from airflow_outbox.values.records import Snapshot

OUTBOX = UUID(int=1)
VIEW = UUID(int=7)


def entry_of(
    number: int, extents: Sequence[Extent], *, view: UUID = VIEW, incarnation: int = 1, shard: int = 0
) -> Entry:
    """Return the entry of a batch that has these extents."""
    return Entry(number, view, incarnation, Snapshot(1, 1), (), tuple(extents), outbox_id=OUTBOX, shard=shard)


@dataclass(slots=True)
class ExtentsInMemory:
    """A shard's partition of the extents topic: committed records by offset, and transactions' ends between them."""

    records: dict[int, str] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    open_from: int | None = None
    state: ExtentsState = field(default_factory=ExtentsState)

    def write(self, entry: Entry, topic_ids: dict[str, str]) -> None:
        """Commit a batch's records."""
        for _, value in self.state.records(entry, topic_ids):
            assert value is not None
            self.records[self.end] = value
            self.state.written(self.end)
            self.end += 1
        self.end += 1

    def take_over(self) -> None:
        """Let another term go on, which knows what the topic tells."""
        found = self.read(0, self.start, self.end)
        tells = [place for place, record in enumerate(found) if record.latest is not None]
        self.state = ExtentsState(found[tells[-1] :] if tells else found, start=self.start)

    def read(self, _shard: int, start: int, upto: int) -> list[ExtentsRecord]:
        """Return the committed records between two offsets."""
        return [
            parsed(offset, self.records[offset])
            for offset in range(max(start, self.start), upto)
            if offset in self.records
        ]

    @property
    def reaches(self) -> PartitionOffsets:
        return PartitionOffsets(self.start, self.end if self.open_from is None else self.open_from, self.end)


def index_of(shards: Sequence[ExtentsInMemory], *, most_extents: int = 100_000) -> BlockIndex:
    """Return an index over one cluster's extents, by shard."""
    index = BlockIndex(lambda shard, start, upto: shards[shard].read(shard, start, upto), most_extents=most_extents)
    index.reach({number: shard.reaches for number, shard in enumerate(shards)})
    return index
