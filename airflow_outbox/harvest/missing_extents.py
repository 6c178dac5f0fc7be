"""Batches that go without extents: counted, and told when that begins, while it lasts, and when it ends."""

from __future__ import annotations

from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.ports import Events

_INTERVAL = 10.0


class MissingExtents:
    """Told of each batch of each shard on each cluster, on the event loop. It writes the event `extents`."""

    def __init__(self, events: Events, measures: Measures) -> None:
        self._events = events
        self._measures = measures
        self._standing: dict[tuple[str, int], tuple[str, float]] = {}  # the reason, and when to say it again

    def tell(self, cluster: str, shard: int, reason: str | None) -> None:
        """A batch goes without extents for this reason; None: it has them."""
        counts, key = self._measures.without_extents, (cluster, shard)
        known, again_at = self._standing.get(key, (None, 0.0))
        if reason is None:
            if known is not None:
                del self._standing[key]
                self._events("extents", cluster=cluster, shard=shard, error=None, batches=counts[cluster])
            return
        counts[cluster] = counts.get(cluster, 0) + 1
        now = self._measures.now()
        if reason != known or now >= again_at:
            self._standing[key] = reason, now + _INTERVAL
            self._events("extents", cluster=cluster, shard=shard, error=reason, batches=counts[cluster])
