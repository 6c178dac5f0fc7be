"""Parking in `atomic` outboxes: a source transaction with a refused record waits whole, and so do later ones that share
a lane with it.

A transaction is *condemned* when one of its records is refused, or it is too large; when one of its records comes, in
its lane, after one that waits or that is condemned; or when it is condemned already. What is condemned waits, all of
it. So a transaction of which a part has been sent already (it is longer than a page) can't be condemned any more within
this Kafka transaction: then the term ends, and the next one knows from the beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from airflow_outbox.errors import RecordsRefusedError
from airflow_outbox.harvest.protocol.closure import too_large
from airflow_outbox.harvest.protocol.parking import (
    Caution,
    Diversion,
    Lane,
    ParkedLanes,
    Refusal,
    Retry,
    passed,
    stand_for_topics,
)
from airflow_outbox.pages import TRANSACTION_ID, Length, OutboxRow


class WholeTransactions:
    """Divides records by their source transactions."""

    def __init__(self, parked: ParkedLanes, caution: Caution, *, max_transaction_records: int) -> None:
        self._parked = parked
        self._caution = caution
        self._max_transaction_records = max_transaction_records
        self._sent: set[int] = set()
        self._condemned: set[int] = set()

    def begin(self) -> None:
        """A Kafka transaction begins."""
        self._sent.clear()
        self._condemned.clear()

    def committed(self) -> None:
        """It is committed, and what was condemned in it is on record."""
        for transaction_id in self._condemned:
            self._caution.condemned_transactions.pop(transaction_id, None)

    def divert(
        self, rows: Sequence[OutboxRow], refusals: Mapping[int, Refusal], *, too_large: Mapping[int, Refusal]
    ) -> Diversion[OutboxRow]:
        """Divide rows of the outbox.

        Raises RecordsRefusedError when a transaction is condemned of which a part has been sent.
        """
        here = transactions(rows)
        already = here & (self._condemned | self._caution.condemned_transactions.keys() | too_large.keys())
        found = condemned(rows, parked=self._parked, refusals=refusals, already=already)
        if late := found & self._sent:
            self._caution.condemned_transactions.update(dict.fromkeys(found - already))
            raise RecordsRefusedError(f"a record of transaction {min(late)} is refused", explained=True)
        refusals = {**refusals, **_first_rows(rows, too_large.keys() - self._condemned, too_large)}
        self._sent |= here - found
        self._condemned |= found
        return divide(rows, parked=self._parked, refusals=refusals, waiting=found)

    def due(
        self, rows: Sequence[OutboxRow], refusals: Mapping[int, Refusal], *, lengths: Mapping[int, Length]
    ) -> Retry[OutboxRow]:
        """Of parked rows, from the first one on: the transactions that can be published now, and the refused records.

        `lengths` are of the transactions as they are parked, that may be tried; others wait, and those that another
        view has published. Of the last ones rows may be missing: they wait, too, and stay due, for they were not tried
        whole.
        """
        counts: dict[int, int] = {}
        for row in rows:
            counts[_transaction(row)] = counts.get(_transaction(row), 0) + 1
        held = counts.keys() - lengths.keys()
        partial = {number for number, length in lengths.items() if counts[number] < length.records}
        too_long = {
            number: too_large(number, length, self._max_transaction_records)
            for number, length in lengths.items()
            if length.records > self._max_transaction_records
        }
        nothing = ParkedLanes({}, ())
        waiting = condemned(rows, parked=nothing, refusals=refusals, already=held | partial | too_long.keys())
        tried = [row for row in rows if _transaction(row) not in held]
        refused = {**stand_for_topics(tried, refusals), **_first_rows(rows, too_long, too_long)}
        others = [
            row[0]
            for row in rows
            if _transaction(row) in waiting and _transaction(row) not in partial and row[0] not in refused
        ]
        published = [row for row in rows if _transaction(row) not in waiting]
        return Retry(published, refused, others, passed(tried, refused))


def condemned(
    rows: Sequence[OutboxRow], *, parked: ParkedLanes, refusals: Mapping[int, Refusal], already: Collection[int]
) -> set[int]:
    """The transactions among these rows, in their order, that have to wait."""
    found = set(already)
    while True:
        before = len(found)
        lanes: set[Lane] = set()
        for row in rows:
            lane, transaction_id = (row[1], row[2]), _transaction(row)
            if row[0] in refusals or lane in lanes or parked.holds(lane):
                found.add(transaction_id)
            if transaction_id in found:
                lanes.add(lane)
        if len(found) == before:
            return found


def divide(
    rows: Sequence[OutboxRow], *, parked: ParkedLanes, refusals: Mapping[int, Refusal], waiting: Collection[int]
) -> Diversion[OutboxRow]:
    """Divide rows by the transactions that are `waiting`, and count those in their lanes."""
    if not waiting:
        return Diversion(rows)
    diversion = Diversion([row for row in rows if _transaction(row) not in waiting])
    aside = [row for row in rows if _transaction(row) in waiting]
    for row in aside:
        if row[0] in refusals:
            diversion.refused[row[0]] = refusals[row[0]]
        else:
            diversion.waiting.append(row[0])
    diversion.topics.update(row[1] for row in aside)
    parked.wait(aside, refusals)
    return diversion


def closed_prefix(rows: Sequence[OutboxRow], *, most: int) -> int:
    """How many rows make the longest prefix of at most `most` that splits no transaction; the shortest if there is
    none.

    The rows themselves split none.
    """
    last = {_transaction(row): place for place, row in enumerate(rows, 1)}
    reach, closed = 0, 0
    for place, row in enumerate(rows, 1):
        reach = max(reach, last[_transaction(row)])
        if reach == place:
            if closed and place > most:
                return closed
            closed = place
            if place >= most:
                return place
    return len(rows)


def transactions(rows: Iterable[OutboxRow]) -> set[int]:
    """The transactions of these rows."""
    return {_transaction(row) for row in rows}


def _first_rows(
    rows: Sequence[OutboxRow], wanted: Collection[int], refusals: Mapping[int, Refusal]
) -> dict[int, Refusal]:
    """The refusals of these transactions, as those of the first record of each."""
    found: dict[int, Refusal] = {}
    left = set(wanted)
    for row in rows if left else ():
        if _transaction(row) in left:
            left.discard(_transaction(row))
            found[row[0]] = refusals[_transaction(row)]
    return found


def _transaction(row: OutboxRow) -> int:
    transaction_id = row[TRANSACTION_ID]
    assert transaction_id is not None
    return transaction_id
