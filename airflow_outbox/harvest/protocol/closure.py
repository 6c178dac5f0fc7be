"""Closure: where a window may be cut into batches without splitting a source transaction (`atomic` outboxes).

A batch is a prefix by id of what is left of a window. It is *closed* when no transaction has records both in it and
after it. Transactions write at the same time, so their ids interleave, and closing one takes in parts of others, which
have to be closed too; at the latest the whole window is closed, because a transaction's records lie in one window.

The closing walks the rows in id order and keeps the *reach*: the highest last id of the transactions met so far. The
prefix up to a row is closed exactly when the row's id has caught up with the reach.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from airflow_outbox.harvest.protocol.parking import Cause, Refusal
from airflow_outbox.pages import TRANSACTION_ID, Length, OutboxRow


class Closure:
    """Cuts the pages of a window, in turn."""

    def __init__(self, *, max_transaction_records: int) -> None:
        self._max_transaction_records = max_transaction_records
        self.lengths: dict[int, Length] = {}  # of the transactions in the batch that is being closed
        self._reach = 0
        self._closed = False

    def unknown(self, rows: Sequence[OutboxRow]) -> set[int]:
        """The transactions of these rows whose lengths are not known yet."""
        if self._closed:
            self._closed = False
            self.lengths.clear()
        return {row[TRANSACTION_ID] for row in rows if row[TRANSACTION_ID] is not None} - self.lengths.keys()

    def learn(self, lengths: Mapping[int, Length]) -> None:
        """Take note of transactions' lengths."""
        self.lengths.update(lengths)

    def too_large(self, transaction_ids: Iterable[int]) -> dict[int, Refusal]:
        """Those of these transactions that have more records than are published together."""
        return {
            transaction_id: too_large(transaction_id, length, self._max_transaction_records)
            for transaction_id in transaction_ids
            if (length := self.lengths.get(transaction_id)) is not None
            and length.records > self._max_transaction_records
        }

    def cut(self, rows: Sequence[OutboxRow], *, complete: bool) -> tuple[int, bool]:
        """How many of a page's rows come next, and whether the batch is closed with them.

        As many as there are up to the last place where it is closed; all of them where there is none. `complete`
        tells that the page is the window's last.
        """
        if complete:
            self._begin()
            return len(rows), True
        reach, closed_at = self._reach, 0
        for place, row in enumerate(rows, 1):
            transaction_id = row[TRANSACTION_ID]
            assert transaction_id is not None
            reach = max(reach, self.lengths[transaction_id].last_id)
            if row[0] >= reach:
                closed_at = place
        if closed_at:
            self._begin()
            return closed_at, True
        self._reach = reach
        return len(rows), False

    def _begin(self) -> None:
        self._reach = 0
        self._closed = True


def lengths_in(rows: Sequence[OutboxRow], wanted: Container[int]) -> dict[int, Length]:
    """The lengths that those of the wanted transactions have by these rows."""
    lengths: dict[int, Length] = {}
    for row in rows:
        transaction_id = row[TRANSACTION_ID]
        if transaction_id is not None and transaction_id in wanted:
            known = lengths.get(transaction_id)
            lengths[transaction_id] = Length(1 if known is None else known.records + 1, row[0])
    return lengths


def too_large(transaction_id: int, length: Length, most: int) -> Refusal:
    """Why a transaction of this length is not published."""
    return Refusal(
        Cause.TOO_LARGE,
        f"transaction {transaction_id} has {length.records} records, and max_transaction_records is {most}",
    )
