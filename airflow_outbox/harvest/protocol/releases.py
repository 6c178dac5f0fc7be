"""Releases: when parked records that nothing holds any more are made due.

A record holds others of its lane or topic. When it is gone, some of them may be free, and Postgres finds out which. But
the parked table gets the records that a batch diverts only when the batch is settled. So releasing waits until every
batch that has diverted something by then is settled.

A term begins with a release: the one before it may have ended too early for its own.
"""

from __future__ import annotations


class Releases:
    """When a term releases parked records next."""

    def __init__(self) -> None:
        self._last_diversion = 0  # the batch in which something was diverted last
        self._wanted: int | None = 0  # released when this batch is settled; None: nothing may be free

    def diverted(self, batch: int) -> None:
        """Records were diverted in a batch."""
        self._last_diversion = batch

    def wanted(self, batch: int | None = None) -> None:
        """Something may be free when a batch is settled; None: when all diverted records are in the parked table."""
        self._wanted = max(self._last_diversion if batch is None else batch, self._wanted or 0)

    def take(self, settled: int) -> bool:
        """Whether to release now that batches up to `settled` are settled. It is no longer wanted then."""
        if self._wanted is None or settled < self._wanted:
            return False
        self._wanted = None
        return True
