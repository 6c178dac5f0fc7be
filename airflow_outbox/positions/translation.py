"""Translation: from how far a consumer has read on one cluster to where it goes on on another one.

Each shard is looked at by itself. Batches of the two clusters are joined by their identity only.

- Within a batch that both have, as many offsets are passed on the target as records are surely read on the source:
  the offsets read, less the batch's gap. Where the counts differ, it is the batch's beginning.
- Past its last record on the source it is the end on the target.
- In or after a batch that the target lacks it is the end of the last batch before it that both have.
- Before all that is known it is the beginning of the target's log.

Never ahead: a record of the outbox that is on both clusters and not read on the source comes at or after the translated
offset on the target. Within a batch, records are read again, at most as many as both gaps have offsets; after one, none
is.

With several shards, a shard whose records are all read holds the others back only as far as its next batch on the
target, if that is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from airflow_outbox.values.extents import Around, BatchExtent, Order, TopicPartitionId


class ExtentIndex(Protocol):
    """The extents on one cluster, as far as they are readable and kept. Methods may raise KafkaError."""

    @property
    def shards(self) -> int:
        """How many shards have a partition in the extents topic. Some may have no batches."""

    def at_offset(self, shard: int, where: TopicPartitionId, offset: int) -> Around:
        """Return the shard's last extent in a partition whose first offset is at most this one, and the next one."""

    def at_batch(self, shard: int, where: TopicPartitionId, order: Order) -> Around:
        """Return the shard's last extent in a partition of a batch up to this place, and the next one."""

    def is_unbroken_after(self, shard: int, order: Order) -> bool:
        """Whether the index surely has each batch of the shard on this cluster that comes after this place."""

    def is_whole(self, shard: int) -> bool:
        """Whether the index surely has each batch that the shard ever had on this cluster."""


@dataclass(frozen=True, slots=True)
class Source:
    """A partition on the cluster where the group reads.

    `end` is where it ends, with uncommitted records. Ask for it, and refresh the index, after the group's offset is
    known.
    """

    where: TopicPartitionId
    end: int
    index: ExtentIndex


@dataclass(frozen=True, slots=True)
class Target:
    """The same partition on the other cluster.

    - `start`: its first offset that is kept
    - `stable`: how far consumers that read committed can get. Ask for it before the index is refreshed.
    """

    where: TopicPartitionId
    start: int
    stable: int
    index: ExtentIndex


class Why(StrEnum):
    """How an offset was translated. With several shards this is about the shard that the position comes from."""

    WITHIN = "within a batch"
    """It is within a batch that both clusters have."""
    AFTER = "after a batch"
    """It is after a batch that both clusters have, and before the next one."""
    LACKING = "after the last common batch"
    """The target lacks the batch: it is the end of the last one before it that both have."""
    UNKNOWN = "before all that is known"
    """No batch at or before it is known that both have: all that the target keeps is read again."""
    NOTHING = "no batch is known"
    """The source has no extent of this partition, which perhaps gets no records from the outbox."""
    OUT_OF_RANGE = "out of range"
    """The source ends before it, so it belongs to another history: all that the target keeps is read again."""


@dataclass(frozen=True, slots=True)
class Translation:
    """An offset on the target, and why.

    `source` and `target` are the batch's extents on the two clusters (None: there is no common batch). `again` bounds
    how many of the outbox's records that are read are read again (None: no bound is known).
    """

    offset: int
    why: Why
    shard: int | None = None
    source: BatchExtent | None = None
    target: BatchExtent | None = None
    again: int | None = None


@dataclass(frozen=True, slots=True)
class _Bound:
    """One shard's word on an offset.

    All of its records before `reached` on the target are read. None of its records from there to `unread` is unread.
    """

    reached: Translation
    unread: int


def translate(offset: int, source: Source, target: Target) -> Translation | None:
    """Translate a committed offset, which is the next to read, from one cluster to another. None: nothing was ever
    committed (a negative offset), so there is nothing to translate.

    Raises what the indexes raise.
    """
    if offset < 0:
        return None
    if offset > source.end:
        return Translation(target.start, Why.OUT_OF_RANGE)
    shards = max(source.index.shards, target.index.shards)
    bounds = [bound for shard in range(shards) if (bound := _bound(shard, offset, source, target)) is not None]
    if not bounds:
        return Translation(target.start, Why.NOTHING)
    furthest = max(bounds, key=lambda bound: bound.reached.offset)
    nearest = min(bounds, key=lambda bound: bound.unread)
    found = furthest.reached
    if nearest.unread < found.offset:
        found = replace(nearest.reached, offset=nearest.unread)
    if shards > 1:
        found = replace(found, again=None)
    return replace(found, offset=max(found.offset, target.start))


def _bound(shard: int, offset: int, source: Source, target: Target) -> _Bound | None:
    """Return what a shard says about an offset; None: it has no records in the partition, or is the only
    one and has no extents there.
    """
    here = source.index.at_offset(shard, source.where, offset)
    if here.upto is None and here.after is None and _is_empty(shard, target):
        is_only_one = source.index.shards == target.index.shards == 1
        if is_only_one or (source.index.is_whole(shard) and target.index.is_whole(shard)):
            return None
        return _Bound(Translation(target.start, Why.UNKNOWN, shard), target.start)
    if here.upto is None or (common := _last_common(here.upto, source, target)) is None:
        return _Bound(Translation(target.start, Why.UNKNOWN, shard), target.start)
    on_source, on_target = common
    if on_source.batch == here.upto.batch and offset <= on_source.last:
        position = _within(offset, on_source, on_target)
        again = min(on_source.count, on_source.gap + on_target.gap) if on_source.count == on_target.count else None
        return _Bound(Translation(position, Why.WITHIN, shard, on_source, on_target, again), position)
    end = on_target.last + 1
    if on_source.batch == here.upto.batch:
        again = 0 if _all_read(on_source, source) else None
        found = Translation(end, Why.AFTER, shard, on_source, on_target, again)
    else:
        found = Translation(end, Why.LACKING, shard, on_source, on_target)
    return _Bound(found, _next_unread(on_target, target))


def _is_empty(shard: int, target: Target) -> bool:
    there = target.index.at_offset(shard, target.where, target.stable)
    return there.upto is None and there.after is None


def _last_common(extent: BatchExtent, source: Source, target: Target) -> tuple[BatchExtent, BatchExtent] | None:
    """Return the extents of the last batch up to this one that both clusters have."""
    on_source: BatchExtent | None = extent
    shard = extent.batch.shard
    while on_source is not None:
        on_target = target.index.at_batch(shard, target.where, on_source.batch.order).upto
        if on_target is None:
            return None
        if on_target.batch == on_source.batch:
            return on_source, on_target
        order = on_target.batch.order
        if order == on_source.batch.order:  # of a leader whose batch was never completed
            order = order[0], order[1] - 1
        on_source = source.index.at_batch(shard, source.where, order).upto
    return None


def _within(offset: int, on_source: BatchExtent, on_target: BatchExtent) -> int:
    """Translate an offset within a batch."""
    if on_source.count != on_target.count:
        return on_target.first
    surely_read = max(0, offset - on_source.first - on_source.gap)
    return min(on_target.first + surely_read, on_target.last + 1)


def _all_read(on_source: BatchExtent, source: Source) -> bool:
    """Whether all records between a batch and the shard's next extent on the source are surely not the outbox's."""
    batch = on_source.batch
    after = source.index.at_batch(batch.shard, source.where, batch.order).after
    if after is None:
        return source.index.is_unbroken_after(batch.shard, batch.order)
    return _follows(after, on_source)


def _follows(later: BatchExtent, extent: BatchExtent) -> bool:
    """Whether the extents of all batches between two are known."""
    return later.batch.incarnation == extent.batch.incarnation and later.since <= extent.batch.number + 1


def _next_unread(on_target: BatchExtent, target: Target) -> int:
    """Return where the shard's next record after a batch is on the target, or can be."""
    end, batch = on_target.last + 1, on_target.batch
    after = target.index.at_batch(batch.shard, target.where, batch.order).after
    if after is not None:
        return after.first if _follows(after, on_target) else end
    if target.index.is_unbroken_after(batch.shard, batch.order):
        return max(end, target.stable)
    return end
