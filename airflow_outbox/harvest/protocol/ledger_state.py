"""A term's memory of the ledger, and the records that it writes next (`protocol.ledger`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from airflow_outbox.errors import HistoryError
from airflow_outbox.harvest.protocol.ledger import Entry, Head, LedgerRecord, chunk_key
from airflow_outbox.harvest.protocol.recovery import Recovery
from airflow_outbox.values.fence import Fence, LedgerPosition


class LedgerState:
    """One term's positions in the ledger.

    - `published`: when all that is committed is settled in Postgres.
    - `settled`: now.
    - `witnessed`: as Postgres has durably recorded it.
    """

    def __init__(self, view: UUID, fence: Fence, recovery: Recovery) -> None:
        self.published = self.settled = self.witnessed = recovery.witness
        self.beats = fence.beats + 1  # by `begin`
        self._unsettled: deque[LedgerPosition] = deque()  # positions once committed batches are settled
        self._view = view
        self._fence = fence
        self._kept = dict(recovery.kept)
        self._keeping = self._kept

    def records(self, entry: Entry, *, highest_id: int, without: Iterable[Entry] = ()) -> list[LedgerRecord]:
        """The records to write with a batch: its entry, the deletion of witnessed entries and of those that it is to
        be `without`, and the head.
        """
        records = entry.records()
        records += [(key, None) for other in without for key, _ in other.records()]
        gone = [kept for kept in self._kept.items() if kept[0] <= self.witnessed.batch]
        self._keeping = {**self._kept, entry.batch: len(records)}
        for batch, chunks in gone:
            records += [(chunk_key(batch, chunk), None) for chunk in range(chunks)]
            del self._keeping[batch]
        head = Head(
            outbox_id=self._fence.outbox_id,
            incarnation=self._fence.incarnation,
            view=self._view,
            batch=entry.batch,
            witnessed=self.witnessed.batch,
            highest_id=max(highest_id, self.published.highest_id),
            beats=self.beats,
            kept=tuple(self._keeping.items()),
            membership=self._fence.membership,
        )
        return [*records, head.record()]

    def committed(self, entry: Entry, *, offset: int, highest_id: int) -> None:
        """The records are committed, the last one at this offset."""
        self._kept = self._keeping
        highest_id = max(highest_id, self.published.highest_id)
        self.published = replace(self.published, batch=entry.batch, offset=offset, highest_id=highest_id)
        self._unsettled.append(self.published)

    def settle(self) -> None:
        """The next committed batch is completed in Postgres. Raises HistoryError if its offset shows another ledger.

        Not raised before: the batch is committed.
        """
        position = self._unsettled.popleft()
        if position.offset <= self.settled.offset:
            raise HistoryError("the ledger's topic was deleted and recreated")
        self.settled = position
