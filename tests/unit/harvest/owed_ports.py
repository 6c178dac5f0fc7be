"""A table and a log for one shard of an owed cluster: what Postgres and that cluster remember, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from airflow_outbox.errors import FencedError
from airflow_outbox.harvest.catching_up import CatchingUp
from airflow_outbox.harvest.kafka.partitioner import DEFAULT_PARTITIONER, Placing
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Ledger, LedgerRecord
from airflow_outbox.values.fence import (
    DatabaseIdentity,
    Fence,
    LedgerPosition,
    LedgerRow,
    OperatorRequest,
    Purged,
    Skipped,
)
from airflow_outbox.values.pages import KEY, PARTITION, TOPIC, VALUE, OutboxRow
from airflow_outbox.values.records import Snapshot

OUTBOX, VIEW = UUID(int=1), UUID(int=2)
"""The outbox's id, and the view under which the lost primary's leader published."""
WEST = "west"
_DATABASE = DatabaseIdentity(1, 1, 1, 1)


def entry(batch: int, *, records: int = 1, partition: int = 0) -> Entry:
    """A batch of the ids from ten times its number on, as it was published on the primary."""
    ids = ((10 * batch, 10 * batch + records - 1),)
    extents = (Extent("t", partition, 0, records - 1, records),)
    return Entry(batch, VIEW, 1, Snapshot(100, 100), ids, extents, outbox_id=OUTBOX, shard=0)


class OwedTable:
    """The fence row, the kept batches, and how many records are kept of each."""

    def __init__(self, kept: Iterable[Entry], *, witness: int, topic_id: str | None = "T", key: str = "k") -> None:
        """`witness`: the last batch that the primary is known to have."""
        self.kept = [*kept]
        self.rows: dict[int, Sequence[int]] = {}  # the places that are kept, unless all are
        self.purged: list[int] = []
        self.waiting: set[int] = set()
        self._key = key
        self._view: UUID | None = None
        self.row = Fence(
            request=OperatorRequest(),
            outbox_id=OUTBOX,
            incarnation=1,
            delivery="exactly_once",
            transactional_ids=("x.0",),
            recorded=_DATABASE,
            present=_DATABASE,
            witness=LedgerPosition("P", witness, witness),
            last_drawn=1000,
            beats=5,
            next_transaction_id=1000,
            newest_transaction_id=0,
            begun_view=VIEW,
            begun_primary="primary",
            owed={WEST: LedgerRow(LedgerPosition(topic_id))},
        )

    @property
    def noted(self) -> LedgerPosition:
        return self.row.owed[WEST].witness

    def promoted(self, rows: Mapping[int, LedgerRow]) -> Fence:
        """The fence row once west is the primary."""
        return replace(self.row, primary=WEST, witness=rows[0].witness, owed={})

    async def take_over(self, view: UUID, after: Sequence[UUID] = ()) -> Fence:
        self._view = view
        return self.row

    async def fence(self, view: UUID) -> Fence:
        if view != self._view:
            raise FencedError("another view has taken over")
        return self.row

    async def require_fence(self, view: UUID) -> None:
        await self.fence(view)

    async def note_producers(self, view: UUID, cluster: str, transactional_ids: Sequence[str]) -> None:
        await self.fence(view)

    async def note_caught_up(self, view: UUID, cluster: str, witness: LedgerPosition) -> None:
        await self.fence(view)
        self.row = replace(self.row, owed={cluster: replace(self.row.owed[cluster], witness=witness)})

    async def skip(self, view: UUID, cluster: str, skipped: Skipped) -> None:
        await self.fence(view)
        self.row = replace(self.row, owed={cluster: replace(self.row.owed[cluster], skipped=skipped)})

    async def owed_entries(self, *, after: int, upto: int, most: int) -> Sequence[Entry]:
        return [each for each in self.kept if after < each.batch <= upto][:most]

    async def owed_rows(self, batch: int) -> Sequence[OutboxRow]:
        [found] = [each for each in self.kept if each.batch == batch]
        ids = found.ids()
        places = self.rows.get(batch, range(1, len(ids) + 1))
        return [(place, "t", self._key, str(ids[place - 1]), (), (), None, 1, None) for place in places]

    async def last_owed(self) -> int:
        return max((each.batch for each in self.kept), default=0)

    async def are_unpublished(self, ids: Sequence[int], numbers: Sequence[int]) -> bool:
        return bool(self.waiting & {*ids})

    async def purge_published(self, view: UUID, ids: Sequence[int], within: Snapshot, **_: Any) -> Purged:
        await self.fence(view)
        self.purged += ids
        return Purged(flushed=0)

    async def close(self) -> None:
        return None


class OwedLog:
    """The cluster's ledger, and the values that were published there."""

    transactional_ids = ("x.0",)
    unfenced = ()

    def __init__(self, *, partitions: int = 1) -> None:
        self.published: list[int] = []
        self.records: list[LedgerRecord] = []
        self.topics: dict[str, int] = {}  # those that it has looked up
        self._partitions = partitions
        self._placing = Placing(DEFAULT_PARTITIONER)

    async def close(self) -> None:
        return None

    async def fence(self, others: Iterable[str] = ()) -> None:
        return None

    async def ledger(self, start: int) -> Ledger:
        found = [(offset, *record) for offset, record in enumerate(self.records, 1) if offset >= start]
        return Ledger.read(topic_id="T", end=len(self.records) + 1, records=found)

    glimpse = ledger

    async def examine(self, rows: Sequence[OutboxRow], *, again: bool = False) -> Mapping[int, Any]:
        self.topics |= {row[TOPIC]: self._partitions for row in rows}
        return {}

    def choose_partitions(self, rows: Sequence[OutboxRow]) -> Sequence[int] | None:
        return self._placing.choose(rows, self.topics) if self.topics else None

    async def begin(self) -> bool:
        return False

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        places: dict[int, int] = {}
        for row in rows:
            place = row[PARTITION] if row[PARTITION] is not None else 0 if row[KEY] else -1  # anywhere
            places[place] = places.get(place, 0) + 1
            self.published.append(int(row[VALUE] or 0))
        return [Extent("t", place, 0, count - 1, count) for place, count in places.items()]

    async def commit(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> int:
        self.records += records
        return len(self.records)

    async def await_readable(self) -> None:
        return None


async def catching_up(table: Any, log: Any, *, places: Any = None) -> CatchingUp:
    """Whoever has taken over begins to catch west up, but for `begin`."""
    view = uuid4()
    await table.take_over(view)
    return CatchingUp(table, log, places=places or log, view=view, cluster=WEST)
