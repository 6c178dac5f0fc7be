"""The extents topic: where the records of each batch are on its cluster. One partition a shard, kept like the data.

A record is written in the same Kafka transaction as the batch that it describes, beside the ledger's entry. Its value
is JSON:

- the batch's identity: `outbox_id`, `incarnation`, `shard`, `view`, `batch` (its number)
- `since`: all batches of this incarnation from this number on have their records here
- `extents`: topics with their ids, and for each partition its number, first offset, last offset, count, and the offset
  of the record of this topic with that partition's extent before (null: there is none)
- `latest`, now and then: for each partition, of any topic, the offset of the record with its last extent before this
  record. So a reader that looks for a partition has to read only up to the next such record.

A batch has one record, also if it published nothing. It has several if one would be too large; each has some of its
partitions.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from airflow_outbox.errors import HistoryError, SchemaVersionError
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, LedgerRecord
from airflow_outbox.values.extents import BatchExtent, BatchId, TopicPartitionId

FORMAT = 1
LATEST_INTERVAL = 256
"""Records from one with `latest` to the next one. There is none where `latest` would be too large."""
# Brokers take a record of 1 MB unless they are told otherwise.
_MOST_PARTITIONS = 1_000  # in a record: at most 400 kB, with the longest names
_MOST_LATEST_BYTES = 500_000

# A search parses many records with the same few of these.
_uuid = lru_cache(maxsize=1_000)(UUID)
_place = lru_cache(maxsize=100_000)(TopicPartitionId)

Latest = Mapping[TopicPartitionId, int]


@dataclass(frozen=True, slots=True)
class ExtentsRecord:
    """A record of the extents topic, and its offset there."""

    offset: int
    batch: BatchId
    since: int
    extents: tuple[BatchExtent, ...]
    latest: Latest | None = None


@dataclass(frozen=True, slots=True)
class ExtentsToWrite:
    """Records (key and value) for a partition of the extents topic, in a transaction with a batch. `written` is told
    each one's offset, in their order, and `refused` that one was not taken.
    """

    topic: str
    partition: int
    records: Sequence[LedgerRecord]
    written: Callable[[int], object] = field(repr=False)
    refused: Callable[[], object] = field(repr=False)


class ExtentsState:
    """One term's memory of a shard's partition of the extents topic, and the records that it writes next."""

    def __init__(self, found: Iterable[ExtentsRecord] = (), *, start: int = 0) -> None:
        """`found` are the records from one with `latest`, or the first one of all, to the last one. Records before the
        offset `start` are gone.
        """
        self._latest: dict[TopicPartitionId, int] = {}
        self._ids: dict[str, str] = {}
        self._since_latest = LATEST_INTERVAL
        self._last: tuple[BatchId, int] | None = None  # the last batch, and since when none is missing
        self._places: deque[list[TopicPartitionId]] = deque()  # of the records that are being written
        for record in found:
            if record.latest is not None:
                self._latest.update(record.latest)
                self._since_latest = 0
            self._since_latest += 1
            self._latest.update((extent.where, record.offset) for extent in record.extents)
            self._last = record.batch, record.since
        self._latest = {where: offset for where, offset in self._latest.items() if offset >= start}
        self._ids = {where.topic: where.topic_id for where in self._latest}

    def records(self, entry: Entry, topic_ids: Mapping[str, str]) -> list[LedgerRecord]:
        """Return the records (key and value) to write with a batch, given the ids that its topics had before it was
        sent. There are none if one of these is not known: extents must not be taken for those of another topic. Nor are
        there any if the topic is another outbox's.
        """
        if self._last is not None and self._last[0].outbox_id != entry.outbox_id:
            return []
        if entry.outbox_id is None or entry.shard is None or any(not topic_ids.get(e.topic) for e in entry.extents):
            return []
        batch = BatchId(entry.outbox_id, entry.incarnation, entry.shard, entry.view, entry.batch)
        since = batch.number
        if self._last is not None and self._last[0].order == (batch.incarnation, batch.number - 1):
            since = self._last[1]
        self._forget_former(topic_ids)
        latest = self._due_latest()
        self._places.clear()
        records: list[LedgerRecord] = []
        for at in range(0, max(1, len(entry.extents)), _MOST_PARTITIONS):
            part = entry.extents[at : at + _MOST_PARTITIONS]
            self._places.append([TopicPartitionId(e.topic, topic_ids[e.topic], e.partition) for e in part])
            value = _value(batch, since, self._linked(part, topic_ids), latest if at == 0 else None)
            records.append((f"batch/{batch.number}", value))
        self._since_latest = 1 if latest is not None else self._since_latest + 1
        self._last = batch, since
        return records

    def written(self, offset: int) -> None:
        """The next record of the last batch has this offset."""
        self._latest.update(dict.fromkeys(self._places.popleft(), offset))

    def _forget_former(self, topic_ids: Mapping[str, str]) -> None:
        """Forget the partitions of topics that were made again since."""
        if any(self._ids.get(topic, topic_id) != topic_id for topic, topic_id in topic_ids.items()):
            current = {**self._ids, **topic_ids}
            self._latest = {
                where: offset
                for where, offset in self._latest.items()
                if where.topic_id == current.get(where.topic, where.topic_id)
            }
        self._ids.update(topic_ids)

    def _due_latest(self) -> Latest | None:
        if self._since_latest < LATEST_INTERVAL:
            return None
        if _size(self._latest) > _MOST_LATEST_BYTES:
            self._since_latest = 0
            return None
        return self._latest

    def _linked(self, extents: Sequence[Extent], topic_ids: Mapping[str, str]) -> Any:
        """Return extents by topic, as a record has them."""
        by_topic: dict[str, list[Any]] = {}
        for extent in extents:
            place = TopicPartitionId(extent.topic, topic_ids[extent.topic], extent.partition)
            before = self._latest.get(place)
            by_topic.setdefault(extent.topic, []).append(
                (extent.partition, extent.first, extent.last, extent.count, before)
            )
        return [(topic, topic_ids[topic], found) for topic, found in by_topic.items()]


def parsed(offset: int, value: bytes | str) -> ExtentsRecord:
    """Parse a record's value. Raises SchemaVersionError for one of a later release, HistoryError for one that no
    release has written.
    """
    try:
        values = json.loads(value)
        version = values["format"]
        if version != FORMAT:
            raise SchemaVersionError(
                f"the extents' record at offset {offset} has format {version}, but this release knows {FORMAT}. "
                "Install a newer airflow-outbox"
            )
        batch = BatchId(
            _uuid(values["outbox_id"]),
            int(values["incarnation"]),
            int(values["shard"]),
            _uuid(values["view"]),
            int(values["batch"]),
        )
        since = int(values["since"])
        extents = tuple(
            BatchExtent(batch, _place(topic, topic_id, partition), first, last, count, before, since)
            for topic, topic_id, found in values["extents"]
            for partition, first, last, count, before in found
        )
        latest = values.get("latest")
    except (ValueError, TypeError, LookupError) as error:
        raise HistoryError(f"the extents' record at offset {offset} was not written by airflow-outbox") from error
    return ExtentsRecord(offset, batch, since, extents, None if latest is None else _latest(latest))


def _latest(values: Any) -> Latest:
    return {
        _place(topic, topic_id, partition): offset for topic, topic_id, found in values for partition, offset in found
    }


def _size(latest: Latest) -> int:
    """Return how many bytes `latest` takes in a record."""
    topics = {(where.topic, where.topic_id) for where in latest}
    places = sum(len(str(where.partition)) + len(str(offset)) + len("[,],") for where, offset in latest.items())
    return places + sum(len(topic) + len(topic_id) + len('["","",[]],') for topic, topic_id in topics)


def _value(batch: BatchId, since: int, extents: Any, latest: Latest | None) -> str:
    values: dict[str, Any] = {
        "format": FORMAT,
        "outbox_id": str(batch.outbox_id),
        "incarnation": batch.incarnation,
        "shard": batch.shard,
        "view": str(batch.view),
        "batch": batch.number,
        "since": since,
        "extents": extents,
    }
    if latest is not None:
        by_topic: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for where, offset in latest.items():
            by_topic.setdefault((where.topic, where.topic_id), []).append((where.partition, offset))
        values["latest"] = [(*topic, found) for topic, found in by_topic.items()]
    return json.dumps(values, separators=(",", ":"))
