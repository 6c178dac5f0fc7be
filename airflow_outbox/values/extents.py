"""Where the records of a batch are on one cluster, as its extents topic tells."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

Order = tuple[int, int]
"""The place of a batch among those of its shard: incarnation and number."""

TopicAndPartition = tuple[str, int]
"""A partition of a topic, as Kafka's clients name it."""


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch's identity, the same on each cluster. Batches of several clusters are the same only by this."""

    outbox_id: UUID
    incarnation: int
    shard: int
    view: UUID
    number: int

    @property
    def order(self) -> Order:
        """Its place among the batches of its shard. Another history may have given it to another batch."""
        return self.incarnation, self.number


@dataclass(frozen=True, slots=True)
class TopicPartitionId:
    """A partition of a topic on one cluster. A topic that is deleted and made again gets another id."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class BatchExtent:
    """Where a batch's records of one partition are.

    - `first`, `last`: the offsets of its first and last record there
    - `count`: how many records it has there. Other offsets in between are not the batch's: they are markers of
      transactions, or records of other applications or shards.
    - `before`: the offset, in the shard's partition of the extents topic, of the record with this partition's extent
      before this one; None: there is none
    - `since`: the extents of all batches of this incarnation from this number on were written, up to this batch
    """

    batch: BatchId
    where: TopicPartitionId
    first: int
    last: int
    count: int
    before: int | None
    since: int

    @property
    def gap(self) -> int:
        """How many offsets between first and last are not the batch's."""
        return self.last - self.first + 1 - self.count


@dataclass(frozen=True, slots=True)
class Around:
    """Two extents of one shard in one partition, one after the other: the last one up to some place, and the next one.

    None: the index has none.
    """

    upto: BatchExtent | None
    after: BatchExtent | None
