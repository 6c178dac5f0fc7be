"""A model of two clusters: every offset of every partition, and what a group has read there.

It is written without the code that translates. It says for each offset on one cluster which records are not read yet,
and where they are on the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from support.extents import OUTBOX, ExtentsInMemory, entry_of, index_of

from airflow_outbox.harvest.protocol.ledger import Extent
from airflow_outbox.positions.index import BlockIndex
from airflow_outbox.positions.translation import Source, Target
from airflow_outbox.values.extents import Order, TopicPartitionId

PARTITIONS = 2
TOPIC = "orders"
OTHER = -1
"""An offset that is no record of the outbox: foreign, aborted, or the end of a transaction."""


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """A batch: its records by partition. Its identity is its shard, view and number."""

    shard: int
    number: int
    records: tuple[tuple[int, ...], ...]
    view: int = 7
    incarnation: int = 1

    @property
    def order(self) -> Order:
        return self.incarnation, self.number


@dataclass(slots=True)
class ModelCluster:
    """One cluster: what is at each offset of each partition, the first offset kept, and each shard's extents."""

    shards: int
    logs: list[list[int]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    starts: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    stable: list[int | None] = field(default_factory=lambda: [None] * PARTITIONS)
    topic_id: str = "first"
    extents: list[ExtentsInMemory] = field(default_factory=list)
    heads: dict[int, Order] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.extents = [ExtentsInMemory() for _ in range(self.shards)]

    def publish(
        self,
        batches: Sequence[ModelBatch],
        fillers: Iterator[int],
        choose: Callable[[list[Any]], Any],
        *,
        without_extents: frozenset[ModelBatch],
        are_open: bool = False,
    ) -> None:
        """Append batches, interleaved by chance where they are of different shards, with other offsets between them,
        and the end of each transaction. `choose` says whose record comes next. `are_open`: they are sent and not
        committed.
        """
        places: dict[ModelBatch, list[Extent]] = {batch: [] for batch in batches}
        for partition, log in enumerate(self.logs):
            queues = [
                [
                    (batch, record)
                    for batch in batches
                    if batch.shard == shard and batch.records[partition]
                    for record in (*batch.records[partition], OTHER)
                ]
                for shard in range(self.shards)
            ]
            offsets: dict[ModelBatch, list[int]] = {}
            if are_open and any(queues) and self.stable[partition] is None:
                self.stable[partition] = len(log)
            while any(queues):
                log += [OTHER] * next(fillers)
                queue = choose([queue for queue in queues if queue])
                batch, record = queue.pop(0)
                if record != OTHER:
                    offsets.setdefault(batch, []).append(len(log))
                log.append(record)
            for batch, found in offsets.items():
                places[batch].append(Extent(TOPIC, partition, found[0], found[-1], len(found)))
        if are_open:
            return
        for batch in batches:
            self.heads[batch.shard] = max(self.heads.get(batch.shard, (0, 0)), batch.order)
            if batch not in without_extents:
                entry = entry_of(
                    batch.number,
                    places[batch],
                    view=UUID(int=batch.view),
                    incarnation=batch.incarnation,
                    shard=batch.shard,
                )
                self.extents[batch.shard].write(entry, {TOPIC: self.topic_id})

    def make_again(self) -> None:
        """Delete the topic, and make it again."""
        self.topic_id += "+"
        self.logs = [[] for _ in range(PARTITIONS)]
        self.starts = [0] * PARTITIONS

    def where(self, partition: int) -> TopicPartitionId:
        return TopicPartitionId(TOPIC, self.topic_id, partition)

    def stable_offset(self, partition: int) -> int:
        found = self.stable[partition]
        return len(self.logs[partition]) if found is None else found

    def index(self) -> BlockIndex:
        index = index_of(self.extents)
        index.reach({number: shard.reaches for number, shard in enumerate(self.extents)}, self.heads)
        return index

    def source(self, partition: int) -> Source:
        return Source(self.where(partition), len(self.logs[partition]), self.index())

    def target(self, partition: int) -> Target:
        return Target(self.where(partition), self.starts[partition], self.stable_offset(partition), self.index())

    def offsets(self, partition: int) -> dict[int, int]:
        """Where each record is that is kept."""
        start = self.starts[partition]
        return {record: at for at, record in enumerate(self.logs[partition]) if record != OTHER and at >= start}


__all__ = ["OTHER", "OUTBOX", "PARTITIONS", "ModelBatch", "ModelCluster"]
