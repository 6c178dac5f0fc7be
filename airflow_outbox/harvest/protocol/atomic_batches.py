"""Closure: where a window may be cut into batches without splitting a source transaction (`atomic` outboxes).

Transactions write at the same time, so their ids interleave. One that is open for hours has an early and a late id.
Rows are read in id order. After a page, the transactions that have been read whole go out. The others are *held back*
until their last row is read. A transaction with a row behind one of theirs in a lane (a topic and key) is held back
too: earlier rows of a lane go out in the same batch or before it. All other lanes go on. The end of a window releases
everything, since a transaction's records lie in one window.

Holding back takes memory, so it is bounded. If many records wait behind a short transaction that ends late, that
transaction is *set aside*. It is parked row by row as it is read, over as many batches as it takes, with the records
behind it. Once all of it is parked, it is published from there. A transaction that will not be published (it is too
large, or condemned for another reason) is set aside from its first row on. A retry of it waits until all of it is
parked; a successor parks the rest.

Long transactions that are too much to hold back *stream*: they are sent in one batch while the rest of them is read.
The batch may end where all of its transactions do. Rows read meanwhile join it or are held back.

Invariants:

- Between two places where a batch may end lie whole transactions, except those that are set aside.
- The rows of a lane go out in the order in which they were read.
- After a page, at most the bound is held back; where a stream ends, at most twice that; after a window's last page,
  nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import cast

from airflow_outbox.values.pages import ID, KEY, TOPIC, TRANSACTION_ID, Length, OutboxRow, total_size
from airflow_outbox.values.records import Lane
from airflow_outbox.values.refusals import Cause, Refusal

_transaction = itemgetter(TRANSACTION_ID)
_SET_ASIDE_AT_ONCE = 10  # transactions after a page, at most


@dataclass(frozen=True, slots=True)
class Taken:
    """The rows that go out after a page, in id order, and whether a batch may end with them.

    More rows are to come of the `streaming` transactions, which the batch has to wait for, and of those `set_aside`.
    """

    rows: Sequence[OutboxRow]
    ends: bool
    streaming: Mapping[int, Length] = field(default_factory=dict)
    set_aside: Collection[int] = ()


class Closure:
    """Takes the pages of windows, in turn. It holds back at most `max_held_records` of at most `max_held_bytes`.

    `condemned` transactions will not be published, nor will those that are too large.
    """

    def __init__(
        self,
        *,
        max_transaction_records: int,
        max_held_records: int,
        max_held_bytes: int,
        condemned: Container[int] = (),
    ) -> None:
        self._max_transaction_records = max_transaction_records
        self._max_held = max_held_records, max_held_bytes
        self._condemned = condemned
        self.lengths: dict[int, Length] = {}  # of the last page's transactions, and of those not read whole
        self.held: Sequence[OutboxRow] = ()
        self._streaming: Mapping[int, Length] = {}
        self._spread: dict[int, Refusal] = {}  # set aside because of the records behind them
        self._reached: int | None = None  # the last id of the window that was read

    @property
    def is_streaming(self) -> bool:
        """Whether a batch is under way that can't end with the rows read so far."""
        return bool(self._streaming)

    def unknown(self, rows: Sequence[OutboxRow]) -> set[int]:
        """The transactions of these rows whose lengths are not known yet. Forgets lengths that are not needed."""
        reached, held = self._reached, transactions(self.held)
        self.lengths = {
            number: length
            for number, length in self.lengths.items()
            if reached is not None and (length.last_id > reached or number in held)
        }
        self._spread = {number: why for number, why in self._spread.items() if number in self.lengths}
        return transactions(rows) - self.lengths.keys()

    def learn(self, lengths: Mapping[int, Length]) -> None:
        """Take note of transactions' lengths."""
        self.lengths.update(lengths)

    def refused(self, transaction_ids: Iterable[int]) -> dict[int, Refusal]:
        """The refusals of these transactions, by id: too large, or too many records wait behind one."""
        refused = {
            transaction_id: too_large(transaction_id, length, self._max_transaction_records)
            for transaction_id in transaction_ids
            if (length := self.lengths.get(transaction_id)) is not None
            and length.records > self._max_transaction_records
        }
        if self._spread:
            refused |= {number: self._spread[number] for number in self._spread.keys() & set(transaction_ids)}
        return refused

    def take(self, page: Sequence[OutboxRow], *, complete: bool) -> Taken:
        """Return the rows that go out after a page. The lengths of its transactions are known.

        `complete`: it is the window's last page.
        """
        rows = [*self.held, *page] if self.held else page
        if complete or not page:
            self.held, self._streaming, self._reached = (), {}, None
            return Taken(rows, ends=True)
        reached = self._reached = page[-1][0]
        unfinished = {number for number in transactions(rows) if self.lengths[number].last_id > reached}
        streaming = {number for number in self._streaming if self.lengths[number].last_id > reached}
        set_aside = {number for number in unfinished if number in self._condemned} | self.refused(unfinished).keys()
        waiting, more = self._waiting(rows, unfinished - set_aside - streaming, goes_on=bool(streaming))
        set_aside = (set_aside | (self._spread.keys() & unfinished)) - waiting
        self._streaming = {number: self.lengths[number] for number in streaming | more}
        self.held = [row for row in rows if row[TRANSACTION_ID] in waiting] if waiting else ()
        if waiting:
            rows = [row for row in rows if row[TRANSACTION_ID] not in waiting]
        return Taken(rows, not self._streaming, self._streaming, set_aside)

    def _waiting(self, rows: Sequence[OutboxRow], unfinished: set[int], *, goes_on: bool) -> tuple[set[int], set[int]]:
        """The transactions to hold back because of unfinished ones, and the unfinished ones to stream instead.

        May set some aside. `goes_on`: the batch that streams goes on.
        """
        most_records, most_bytes = self._max_held
        if not self._streaming:
            if any(self.lengths[number].records > most_records for number in unfinished):
                return set(), unfinished  # at once: it can't be held back
        elif not goes_on:  # the batch under way ends here and does not take in what begins in this page
            waiting = behind(rows, unfinished)
            held = [row for row in rows if row[TRANSACTION_ID] in waiting]
            fits = len(held) <= 2 * most_records and total_size(held) <= 2 * most_bytes
            if fits and self._streaming.keys().isdisjoint(waiting):
                return waiting, set()
            return set(), unfinished
        for _ in range(_SET_ASIDE_AT_ONCE):
            if not unfinished:
                break
            waiting = behind(rows, unfinished)
            if not self._streaming.keys().isdisjoint(waiting):  # the batch under way has to wait for one of them
                return set(), unfinished
            held = [row for row in rows if row[TRANSACTION_ID] in waiting]
            if len(held) <= most_records and total_size(held) <= most_bytes:
                return waiting, set()
            own = [row for row in held if row[TRANSACTION_ID] in unfinished]
            if 2 * len(own) > most_records or 2 * total_size(own) > most_bytes:
                return set(), unfinished
            last = max(unfinished, key=lambda number: self.lengths[number].last_id)
            first_id = next(row[ID] for row in own if row[TRANSACTION_ID] == last)
            self._spread[last] = spread(last, first_id, self.lengths[last])
            unfinished = unfinished - {last}
        return set(), unfinished


def transactions(rows: Iterable[OutboxRow]) -> set[int]:
    """The ids of these rows' transactions; they were read with the rows."""
    return cast("set[int]", set(map(_transaction, rows)))


def behind(rows: Sequence[OutboxRow], waiting: Collection[int]) -> set[int]:
    """The `waiting` transactions and all that wait with them: each has a row behind one of theirs in a lane, and so on.

    The rows are in order.
    """
    if not _is_any_behind(rows, waiting):
        return set(waiting)
    lanes: defaultdict[Lane, list[int]] = defaultdict(list)  # their transactions, row by row
    firsts: defaultdict[int, dict[Lane, int]] = defaultdict(dict)  # the place of a transaction's first row in each lane
    for row in rows:
        lane, number = (row[TOPIC], row[KEY]), row[TRANSACTION_ID]
        assert number is not None
        places = lanes[lane]
        if lane not in firsts[number]:
            firsts[number][lane] = len(places)
        places.append(number)
    found = {number for number in waiting if number in firsts}
    new, closed = list(found), dict.fromkeys(lanes, -1)  # from which place on a lane is closed; -1: it is open
    while new:
        for lane, first in firsts[new.pop()].items():
            places, before = lanes[lane], closed[lane]
            if before == -1 or first < before:
                closed[lane] = first
                for number in places[first : None if before == -1 else before]:
                    if number not in found:
                        found.add(number)
                        new.append(number)
    return found | set(waiting)


def _is_any_behind(rows: Sequence[OutboxRow], waiting: Collection[int]) -> bool:
    """Whether a row of another transaction is behind one in its lane. Writers that lock their keys prevent that."""
    closed: set[Lane] = set()
    for row in rows:
        if row[TRANSACTION_ID] in waiting:
            closed.add((row[TOPIC], row[KEY]))
        elif closed and (row[TOPIC], row[KEY]) in closed:
            return True
    return False


def lengths_in(rows: Sequence[OutboxRow], wanted: Container[int]) -> dict[int, Length]:
    """The lengths of the wanted transactions among these rows, counted in these rows."""
    lengths: dict[int, Length] = {}
    for row in rows:
        transaction_id = row[TRANSACTION_ID]
        if transaction_id is not None and transaction_id in wanted:
            known = lengths.get(transaction_id)
            lengths[transaction_id] = Length(1 if known is None else known.records + 1, row[ID])
    return lengths


def too_large(transaction_id: int, length: Length, most: int) -> Refusal:
    """Why a transaction of this length is not published."""
    return Refusal(
        Cause.TOO_LARGE,
        f"transaction {transaction_id} has {length.records} records, but max_transaction_records is {most}. "
        "Raise it and retry the transaction",
    )


def spread(transaction_id: int, first_id: int, length: Length) -> Refusal:
    """Why a transaction is parked until all of it has been read."""
    return Refusal(
        Cause.SPREAD,
        f"transaction {transaction_id} spans the ids {first_id} to {length.last_id}, and more records wait behind it "
        "than are held in memory (a third of max_in_flight_records). It is published from the parked table as soon as "
        "all of it is there",
    )


def too_spread(transaction_id: int, length: Length, *, others: int, most: int) -> Refusal:
    """Why a transaction is not published: it is too long to be held back, among too many others."""
    return Refusal(
        Cause.TOO_LARGE,
        f"transaction {transaction_id} has {length.records} records, more than are held in memory, and {others} others "
        f"would have to be published together with it, but max_transaction_records is {most}. Retry it: from the "
        "parked table it is published alone",
    )


def too_slow(transaction_id: int, length: Length, *, seconds: float) -> Refusal:
    """Why a transaction that takes too long is not published."""
    return Refusal(
        Cause.TOO_LARGE,
        f"transaction {transaction_id} has {length.records} records and was twice not published within {seconds:g} s. "
        "Raise transaction_timeout and retry it",
    )
