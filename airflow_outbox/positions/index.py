"""The index of a cluster's extents: a search in the extents topic, of which only a bounded part is ever in memory.

The topic is the index. It is divided into blocks of offsets; a block is read when a search meets it. A search halves
the range of blocks that an extent may be in, so it reads a block or a few for each halving. A partition with no extent
in a block costs no scan. A block's first extent says where the one before it is. And every few hundred records, one
says where the last extent of each partition is.

Blocks are kept until their extents are too many; those not used for the longest time go first. Nothing has to be built:
an index that is new knows as much as one that is old.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.extents_reader import ExtentsReader
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.page_reader import PartitionOffsets
from airflow_outbox.harvest.protocol.extents import ExtentsRecord, Latest
from airflow_outbox.values.extents import Around, BatchExtent, BatchId, Order, TopicPartitionId

BLOCK = 256
"""Offsets in a block. A batch takes two: its record, and the end of its transaction."""
MOST_EXTENTS = 100_000
"""Extents in memory, at most, beside the block that is being read: some 20 MB."""

_BEFORE_ALL: Order = (1, 0)
"""The place before an outbox's first batch. A later incarnation does not tell what an earlier one published."""

Key = TypeVar("Key", int, Order)

Reader = Callable[[int, int, int], Sequence[ExtentsRecord]]
"""Reads a shard's records between two offsets."""


@dataclass(slots=True)
class _Block:
    """A block's contents up to some offset.

    `latest` are the last extents' records before the block's first record that tells them.
    """

    upto: int
    extents: dict[TopicPartitionId, list[BatchExtent]] = field(default_factory=dict)
    places: dict[TopicPartitionId, list[int]] = field(default_factory=dict)
    latest: Latest | None = None
    last: tuple[BatchId, int] | None = None
    size: int = 0

    def add(self, record: ExtentsRecord) -> None:
        if self.latest is None:
            self.latest = record.latest
        for extent in record.extents:
            self.extents.setdefault(extent.where, []).append(extent)
        self.last = record.batch, record.since
        self.size += len(record.extents) + len(record.latest or ())


class BlockIndex:
    """The extents on one cluster, over what reads them. One thread at a time uses it."""

    def __init__(self, read: Reader, outbox_id: UUID | None = None, *, most_extents: int = MOST_EXTENTS) -> None:
        """Extents of another outbox than `outbox_id` are left out."""
        self._read = read
        self._outbox_id = outbox_id
        self._most_extents = most_extents
        self._reaches: Mapping[int, PartitionOffsets] = {}
        self._heads: Mapping[int, Order] = {}
        self._blocks: OrderedDict[tuple[int, int], _Block] = OrderedDict()
        self._size = 0
        self.blocks_read = 0
        """How many blocks were read up to now, also in part."""

    @property
    def shards(self) -> int:
        return len(self._reaches)

    @property
    def extents_in_memory(self) -> int:
        """How many extents are in memory now."""
        return self._size

    def reach(self, reaches: Mapping[int, PartitionOffsets], heads: Mapping[int, Order] | None = None) -> None:
        """Look no further than this, by shard, from now on. `heads` are the last batches of shards, as their ledgers
        told before (None: nobody has asked).
        """
        for shard, old in self._reaches.items():
            now = reaches.get(shard)
            if now is None or now.stable < old.stable:  # it was made again
                self._forget(shard)
        self._reaches = reaches
        self._heads = heads or {}

    def forget(self) -> None:
        """Forget all that was read: the topic was made again."""
        self._blocks.clear()
        self._size = 0

    def at_offset(self, shard: int, where: TopicPartitionId, offset: int) -> Around:
        """See `translation.ExtentIndex`. Raises KafkaError."""
        return self._around(shard, where, offset, lambda extent: extent.first)

    def at_batch(self, shard: int, where: TopicPartitionId, order: Order) -> Around:
        """See `translation.ExtentIndex`. Raises KafkaError."""
        return self._around(shard, where, order, lambda extent: extent.batch.order)

    def is_unbroken_after(self, shard: int, order: Order) -> bool:
        """See `translation.ExtentIndex`. Raises KafkaError."""
        head, last = self._heads.get(shard), self._last(shard)
        if head is None or last is None:
            return False
        batch, since = last
        return batch.order >= head and batch.incarnation == order[0] and since <= order[1] + 1

    def is_whole(self, shard: int) -> bool:
        """See `translation.ExtentIndex`. Raises KafkaError."""
        head, reaches = self._heads.get(shard), self._reaches.get(shard)
        if reaches is None or reaches.start > 0:
            return False
        return self._last(shard) is None if head is None else self.is_unbroken_after(shard, _BEFORE_ALL)

    def _last(self, shard: int) -> tuple[BatchId, int] | None:
        """Return a shard's last batch, and since when none is missing before it."""
        if (reaches := self._reaches.get(shard)) is None or reaches.start >= reaches.stable:
            return None
        for number in range((reaches.stable - 1) // BLOCK, reaches.start // BLOCK - 1, -1):
            if (last := self._block(shard, number).last) is not None:
                return last
        return None

    def _around(self, shard: int, where: TopicPartitionId, key: Key, key_of: Callable[[BatchExtent], Key]) -> Around:
        """Return the last extent with a key up to this one, and the next one. Keys never fall from one extent to the
        next.
        """
        reaches = self._reaches.get(shard)
        if reaches is None or reaches.start >= reaches.stable:
            return Around(None, None)
        upto = after = None
        low, high = reaches.start // BLOCK, (reaches.stable - 1) // BLOCK + 1  # blocks that may have it
        while low < high:
            middle = (low + high) // 2
            at, found, is_below = self._find(shard, where, middle, high)
            if found is None:
                if is_below:  # nothing up to that block
                    low = at + 1
                else:  # nothing from the middle on
                    high = middle
                continue
            number, extents = found
            if number < low:  # known before
                low = at + 1
                continue
            place = bisect_right(extents, key, key=key_of)
            if place == 0:
                after, high = extents[0], min(middle, number)
                before = extents[0].before
                if before is None or before < reaches.start:
                    break
                high = min(high, before // BLOCK + 1)
                continue
            upto = extents[place - 1]
            if place < len(extents):
                return Around(upto, extents[place])
            low = at + 1
        return Around(upto, after)

    def _find(
        self, shard: int, where: TopicPartitionId, start: int, end: int
    ) -> tuple[int, tuple[int, list[BatchExtent]] | None, bool]:
        """Find a partition's extents in blocks from one on, or before it if some block tells that there are none after.

        Return up to which block is known, the block with extents and these, and whether the place before is known.
        """
        for number in range(start, end):
            block = self._block(shard, number)
            if extents := block.extents.get(where):
                return number, (number, extents), False
            if block.latest is not None:
                offset = block.latest.get(where)
                if offset is None or offset < self._reaches[shard].start:
                    return number, None, True
                before = offset // BLOCK
                extents = self._block(shard, before).extents.get(where)
                return number, (before, extents) if extents else None, True
        return end, None, False

    def _block(self, shard: int, number: int) -> _Block:
        reaches = self._reaches[shard]
        upto = min(reaches.stable, (number + 1) * BLOCK)
        block = self._blocks.get((shard, number))
        if block is not None and block.upto >= upto:
            self._blocks.move_to_end((shard, number))
            return block
        block = block or _Block(max(reaches.start, number * BLOCK))
        before = block.size
        for record in self._read(shard, block.upto, upto):
            if self._outbox_id in (None, record.batch.outbox_id):
                block.add(record)
        block.upto = upto
        self.blocks_read += 1
        self._size += block.size - before
        self._blocks[shard, number] = block
        self._blocks.move_to_end((shard, number))
        while self._size > self._most_extents and len(self._blocks) > 1:
            _, oldest = self._blocks.popitem(last=False)
            self._size -= oldest.size
        return block

    def _forget(self, shard: int) -> None:
        for place in [place for place in self._blocks if place[0] == shard]:
            self._size -= self._blocks.pop(place).size


class TopicIndex(BlockIndex):
    """The extents on one cluster, as its extents topic has them. One thread at a time uses it."""

    def __init__(
        self,
        config: HarvestConfig,
        names: KafkaNames,
        outbox_id: UUID | None = None,
        *,
        most_extents: int = MOST_EXTENTS,
    ) -> None:
        """`config` says how to reach this cluster. Asks nothing yet: `refresh` before anything else. Raises KafkaError
        for settings that Kafka's client refuses.
        """
        self._topic = names.extents_topic
        self._topic_id = ""
        self._cluster = Cluster(config.kafka)
        self._reader = ExtentsReader(config, names, cluster=self._cluster)
        super().__init__(self._reader.read, outbox_id, most_extents=most_extents)

    def refresh(self) -> None:
        """See how far the topic reaches now. Raises KafkaError, also when there is no such topic, or one with fewer
        partitions than the ledger. With several shards it is raised while a transaction stays open in one of the two.
        """
        shards, ledgers = range(self._reader.partitions()), range(self._reader.ledger_partitions())
        if len(shards) < len(ledgers):
            raise KafkaError(
                f"topic {self._topic} has {len(shards)} partitions, fewer than the ledger, which has {len(ledgers)}: "
                "nobody can tell where the other shards' records are. Run `airflow-outbox init`, which adds partitions"
            )
        if self._reader.topic_id != self._topic_id:
            self.forget()
            self._topic_id = self._reader.topic_id
        heads = self._reader.heads(ledgers)  # before the extents, which must not be behind
        reaches = self._reader.reaches(shards)
        if heads is None or not all(found.is_settled for found in reaches.values()):
            if len(shards) > 1:
                raise KafkaError(f"a transaction is open in topic {self._topic}, or in the ledger. Try again")
            heads = {}
        self.reach(reaches, heads)

    def close(self) -> None:
        """Give up the connections."""
        self._reader.close()
