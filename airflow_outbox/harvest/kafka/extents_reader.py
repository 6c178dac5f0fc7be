"""Reading the extents topic of one cluster, and how far its ledger is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from airflow_outbox.errors import HistoryError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.page_reader import PageReader, PartitionOffsets
from airflow_outbox.harvest.protocol.extents import LATEST_INTERVAL, ExtentsRecord, parsed
from airflow_outbox.harvest.protocol.ledger import HEAD, Head, Ledger
from airflow_outbox.values.extents import Order

logger = logging.getLogger(__name__)

_SPAN = 3 * LATEST_INTERVAL  # offsets: each transaction takes one for its end
_LONGEST_SPAN = 32 * _SPAN
_HEAD_SPAN = 8


class ExtentsReader:
    """Reads with a consumer of its own, which belongs to no group. One thread at a time uses it. `cluster` answers
    questions about the topics.
    """

    def __init__(self, config: HarvestConfig, names: KafkaNames, *, cluster: Cluster) -> None:
        self._topic = names.extents_topic
        self._ledger_topic = names.ledger_topic
        self._pages = PageReader(config, cluster=cluster)
        self._heads: dict[int, tuple[str, PartitionOffsets, Head | None]] = {}

    def partitions(self, *, writes: bool = False) -> int:
        """Return how many partitions the topic has. Raises KafkaError, also if it may not be read, or written to if
        this user `writes`.
        """
        return self._pages.partitions(self._topic, writes=writes)

    @property
    def topic_id(self) -> str:
        """The id that the topic had when `partitions` was called last. One that is made again has another."""
        return self._pages.topic_ids.get(self._topic, "")

    def ledger_partitions(self) -> int:
        """Return how many partitions the ledger has: there is no shard beyond them. Raises KafkaError."""
        return self._pages.partitions(self._ledger_topic)

    def reaches(self, shards: Iterable[int]) -> dict[int, PartitionOffsets]:
        """Return how far these shards' partitions reach now. Raises KafkaError."""
        return self._pages.reaches(self._topic, shards)

    def read(self, shard: int, start: int, upto: int) -> list[ExtentsRecord]:
        """Return the committed records between two offsets that can be read. Raises KafkaError."""
        records: list[ExtentsRecord] = []
        for offset, message in self._pages.read(self._topic, shard, start, upto):
            try:
                records.append(parsed(offset, message.value() or b""))
            except HistoryError as error:  # nobody relies on it
                logger.warning("%s. It is skipped", error.difference)
        return records

    def last(self, shard: int, reaches: PartitionOffsets) -> Iterator[ExtentsRecord]:
        """Read the last records of a shard, from one on that tells of all before it. However many these are, only a
        part of them is in memory at a time. Raises KafkaError.
        """
        span, upto = _SPAN, reaches.stable
        later: list[tuple[int, int]] = []
        while upto > reaches.start:
            start = max(reaches.start, upto - span)
            found = self.read(shard, start, upto)
            if tells := [place for place, record in enumerate(found) if record.latest is not None]:
                yield from found[tells[-1] :]
                break
            later.append((start, upto))
            span, upto = min(2 * span, _LONGEST_SPAN), start
        for start, end in reversed(later):
            yield from self.read(shard, start, end)

    def heads(self, shards: Iterable[int]) -> dict[int, Order] | None:
        """Return the last batch of each of these shards by its ledger, if it has any; None: a transaction stays open
        there, so that nobody can tell. Raises KafkaError.
        """
        heads: dict[int, Order] = {}
        for shard, reaches in self._pages.reaches(self._ledger_topic, shards).items():
            if not reaches.is_settled:
                return None
            if (head := self._known_head(shard, reaches)) is not None:
                heads[shard] = head.incarnation, head.batch
        return heads

    def close(self) -> None:
        """Give up the connections."""
        self._pages.close()

    def _known_head(self, shard: int, reaches: PartitionOffsets) -> Head | None:
        """The last head, which is read again only when the ledger reaches further, or was made again."""
        topic_id = self._pages.topic_ids.get(self._ledger_topic, "")
        known = self._heads.get(shard)
        if known is None or known[:2] != (topic_id, reaches):
            known = self._heads[shard] = (topic_id, reaches, self._head(shard, reaches))
        return known[2]

    def _head(self, shard: int, reaches: PartitionOffsets) -> Head | None:
        span = _HEAD_SPAN
        while True:
            start = max(reaches.start, reaches.stable - span)
            for offset, message in reversed(self._pages.read(self._ledger_topic, shard, start, reaches.stable)):
                key, value = message.key(), message.value()
                if key is not None and _text(key) == HEAD and value is not None:
                    return Ledger.read(topic_id="", end=0, records=[(offset, HEAD, _text(value))]).head
            if start <= reaches.start:
                return None
            span *= 4


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="replace")
