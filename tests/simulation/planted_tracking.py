"""Bugs of flush tracking: what is published is not known, or not counted, as it should be."""

from __future__ import annotations

from collections import Counter

from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.harvest.protocol.ledger import Entry
from airflow_outbox.harvest.reading import Reading
from airflow_outbox.values.pages import PageSnapshot


class FlushesEarly(FlushTracking):
    """Takes what is sent for flushed."""

    def send(self, records: int) -> None:
        super().send(records)
        self.flush(records)


class TakesPageForWindow(Reading):
    """Takes every page for all of its window."""

    async def read_page(self, *, wait: float = 0.0) -> bool:
        found = await super().read_page(wait=wait)
        if (within := self._windows.next.within) is not None:
            self._tracking.end_window(within)
        return found


class EndsWindowsLate(Reading):
    """Takes a later snapshot for that of a window of several pages."""

    async def read_page(self, *, wait: float = 0.0) -> bool:
        before = self._windows.next.within
        found = await super().read_page(wait=wait)
        if before is not None and self._windows.next.within is None:
            page = await self._table.read(PageSnapshot(), max_records=1, max_bytes=1, transaction_ids=False)
            self._tracking.end_window(page.snapshot)
        return found


def no_topics(entry: Entry) -> Counter[str]:
    return Counter()
