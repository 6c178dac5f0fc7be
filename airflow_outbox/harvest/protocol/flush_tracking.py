"""Flush tracking: how far everything is out, so that writers can know whether their transactions are.

Each shard keeps two numbers:

- how many records were *sent*: read, and on their way to Kafka;
- how many of them are *flushed* on every cluster: committed there, or parked. The lowest count of the clusters is used.

Batches are flushed in the order in which they were sent, so the numbers tell which records are out.

A window ends where no record of its transactions is left to send. Once all records sent by then are flushed, the
window's snapshot is the *watermark*: every transaction that it sees is out, whole.

    window ends ──► remembered, with the number of records sent ──► that many are flushed ──► watermark

Invariants, within an incarnation:

- the watermark is a window's snapshot, so it moves at the bounds of transactions only; empty windows move it, too;
- it never goes back: a snapshot that does not see all that the watermark sees is skipped. So a new term, which starts
  over with the whole table, goes on from the watermark that the last one left in the fence row;
- all values for the fence row are as of the last batch that was purged;
- the counts of published records by topic hold whole transactions only: they end with the last batch that ended where
  a window did.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping

from airflow_outbox.values.fence import Flushed
from airflow_outbox.values.records import Snapshot

PRIMARY = "primary"


class FlushTracking:
    """One term's numbers for one shard. Earlier terms have left `flushed`; `batch` is their last batch."""

    def __init__(self, flushed: Flushed, *, batch: int = 0, clusters: Collection[str] = (PRIMARY,)) -> None:
        self.watermark = flushed.watermark
        self.last_sent = 0
        self._last_flushed = dict.fromkeys(clusters, 0)
        self._last_purged = 0
        self._ended: deque[tuple[int, Snapshot]] = deque()  # windows by the count sent at their end, not flushed yet
        self._reached: deque[tuple[int, Snapshot]] = deque()  # watermarks that are not purged
        self._topics = Counter(flushed.topics) + Counter(flushed.uncovered)
        # Purged batches that may hold parts of a transaction, with the count of records after each.
        self._purged = deque([(0, batch, dict(self._topics))])
        self._covered = (flushed.watermark, flushed.batch, flushed.topics)

    @property
    def last_flushed(self) -> int:
        """How many of the sent records are flushed on every cluster."""
        return min(self._last_flushed.values())

    @property
    def account(self) -> Flushed:
        """The values for the fence row, as of the last batch that was purged."""
        watermark, batch, topics = self._covered
        return Flushed(watermark, batch, topics, dict(self._topics - Counter(topics)))

    def send(self, records: int) -> None:
        """Records of the present window are on their way."""
        self.last_sent += records

    def end_window(self, snapshot: Snapshot) -> None:
        """All of the present window was sent; it is within `snapshot`."""
        if self._ended and self._ended[-1][0] == self.last_sent:
            self._ended.pop()  # an empty window: its snapshot stands for both
        self._ended.append((self.last_sent, snapshot))
        self._advance()

    def flush(self, records: int, cluster: str = PRIMARY) -> None:
        """The next records are committed on a cluster, or parked."""
        self._last_flushed[cluster] += records
        self._advance()

    def purge(self, batch: int, records: int, topics: Mapping[str, int]) -> None:
        """The next batch, of this many records, is deleted from the outbox; `topics` counts the published ones."""
        self._topics.update(topics)
        self._last_purged += records
        self._purged.append((self._last_purged, batch, dict(self._topics)))
        self._settle()

    def _advance(self) -> None:
        while self._ended and self._ended[0][0] <= self.last_flushed:
            sent, snapshot = self._ended.popleft()
            if self.watermark is None or snapshot.includes(self.watermark):
                self.watermark = snapshot
                self._reached.append((sent, snapshot))
        self._settle()

    def _settle(self) -> None:
        watermark, batch, topics = self._covered
        while self._reached and self._reached[0][0] <= self._last_purged:
            sent, watermark = self._reached.popleft()
            while self._purged and self._purged[0][0] <= sent:
                counted = self._purged.popleft()
                if counted[0] == sent:  # a batch that ends within a window may hold half of a transaction
                    _, batch, topics = counted
        self._covered = (watermark, batch, topics)
