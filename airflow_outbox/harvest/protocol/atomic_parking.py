"""Parking in `atomic` outboxes: a source transaction with a refused record waits whole, and so do later ones that share
a lane with it.

A transaction is *condemned* when

- one of its records is refused, or it is too large;
- one of its records comes, in its lane, after one that waits or is condemned;
- it is condemned already.

A condemned transaction waits whole. One that is longer than a page may have been sent in part already. Then it can't be
condemned within this Kafka transaction: the term ends, and the next one knows from the beginning.

A transaction known to be condemned from the beginning is set aside as it is read, over as many batches as it takes.
Its first record has the reason. A term that finds a part of a transaction in the parked table parks the rest of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_outbox.errors import PublishError, RecordsRefusedError
from airflow_outbox.harvest.protocol.atomic_batches import behind, too_large, too_slow, too_spread, transactions
from airflow_outbox.harvest.protocol.parking import (
    Caution,
    Diversion,
    ParkedLanes,
    RetryOutcome,
    passed,
    stand_for_topics,
)
from airflow_outbox.values.pages import ID, KEY, TOPIC, TRANSACTION_ID, Length, OutboxRow
from airflow_outbox.values.refusals import Refusal


class WholeTransactions:
    """Divides records by their source transactions."""

    def __init__(
        self,
        parked: ParkedLanes,
        caution: Caution,
        *,
        max_transaction_records: int,
        parked_in_part: Collection[int] = (),
    ) -> None:
        """`parked_in_part` are transactions that were set aside when an earlier term ended."""
        self.parked = parked
        self._caution = caution
        self._max_transaction_records = max_transaction_records
        self._sent: set[int] = set()
        self._condemned: set[int] = set()
        self._going_on: Collection[int] = ()
        self._named = set(parked_in_part)  # set aside, and the reason is on record
        self.condemned_before = frozenset([*parked_in_part, *caution.condemned_transactions])
        self.may_be_free = False
        """Whether this Kafka transaction sets something aside that perhaps nothing holds any more."""

    def begin(self, batch: int) -> None:
        """A batch begins, and its Kafka transaction."""
        self.parked.begin(batch)
        self._sent.clear()
        self._condemned.clear()
        self.may_be_free = False

    @property
    def condemned(self) -> frozenset[int]:
        """The transactions that were condemned in this Kafka transaction, and end in it."""
        return frozenset(self._condemned.difference(self._going_on))

    @property
    def no_longer_slow(self) -> frozenset[int]:
        """The transactions that took too long the last time and were sent in this Kafka transaction."""
        return frozenset(self._caution.slow_transactions & self._sent)

    def divert(
        self,
        rows: Sequence[OutboxRow],
        refusals: Mapping[int, Refusal],
        *,
        refused: Mapping[int, Refusal],
        set_aside: Collection[int],
    ) -> Diversion[OutboxRow]:
        """Divide rows of the outbox. Some of their transactions are `refused`; those `set_aside` have more to come.

        Raises RecordsRefusedError when a transaction is condemned after a part of it was sent.
        """
        here = transactions(rows)
        before = here & self.condemned_before
        already = before | (here & (self._condemned | refused.keys()))
        found = condemned(rows, parked=self.parked, refusals=refusals, already=already)
        if late := found & self._sent:
            self._caution.condemned_transactions.update(dict.fromkeys(found - already))
            raise RecordsRefusedError(f"a record of transaction {min(late)} is refused", explained=True)
        known = self._caution.condemned_transactions
        reasons = {**refused, **{number: why for number in before if (why := known.get(number)) is not None}}
        refusals = {**refusals, **_first_rows(rows, reasons.keys() - self._condemned - self._named, reasons)}
        self._named = (self._named | reasons.keys()) - (here - set(set_aside))
        self._sent |= here - found
        self._condemned |= found
        self._going_on = set_aside
        self.may_be_free |= bool(before)
        return divide(rows, parked=self.parked, refusals=refusals, waiting=found)

    def require_end(
        self, streaming: Mapping[int, Length], *, records: int, seconds: float, most_seconds: float
    ) -> None:
        """Check a Kafka transaction that stays open for `streaming` ones: its `records`, and its age in `seconds`.

        Beyond the bounds, condemn the longest of them, so that the others fit, and raise RecordsRefusedError. The first
        time that it takes too long, raise PublishError instead.
        """
        if not streaming:
            return
        number, length = max(streaming.items(), key=lambda item: (item[1].records, item))
        refusal: Refusal | None = None
        if records > 2 * self._max_transaction_records:
            others = max(0, records - length.records)
            refusal = too_spread(number, length, others=others, most=self._max_transaction_records)
        elif seconds > most_seconds:
            # Once may be the servers' fault.
            refusal = (
                too_slow(number, length, seconds=most_seconds) if number in self._caution.slow_transactions else None
            )
            self._caution.slow_transactions.add(number)
        else:
            return
        if refusal is None:
            raise PublishError(f"transaction {number} was not published within {most_seconds:g} s; it is tried again")
        self._caution.condemned_transactions[number] = refusal
        raise RecordsRefusedError(refusal.reason)

    def due(
        self, rows: Sequence[OutboxRow], refusals: Mapping[int, Refusal], *, lengths: Mapping[int, Length]
    ) -> RetryOutcome[OutboxRow]:
        """Return which transactions of these parked rows can be published now, and the refused records.

        The rows are parked ones from the first on. `lengths` are those of the transactions that may be tried, as they
        are parked. Others wait, as do those that another view has published. Rows of the last transactions may be
        missing: these wait too, and stay due, since they were not tried whole.
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
            row[ID]
            for row in rows
            if _transaction(row) in waiting and _transaction(row) not in partial and row[ID] not in refused
        ]
        published = [row for row in rows if _transaction(row) not in waiting]
        is_early = any(lengths[number].last_id <= rows[-1][0] for number in partial)
        return RetryOutcome(published, refused, others, passed(tried, refused), is_early)


def condemned(
    rows: Sequence[OutboxRow], *, parked: ParkedLanes, refusals: Mapping[int, Refusal], already: Collection[int]
) -> set[int]:
    """The transactions among these rows, in their order, that have to wait."""
    stopped = {_transaction(row) for row in rows if row[ID] in refusals or parked.holds((row[TOPIC], row[KEY]))}
    return behind(rows, stopped.union(already))


def divide(
    rows: Sequence[OutboxRow], *, parked: ParkedLanes, refusals: Mapping[int, Refusal], waiting: Collection[int]
) -> Diversion[OutboxRow]:
    """Divide rows by the transactions that are `waiting`, and count those in their lanes."""
    if not waiting:
        return Diversion(rows)
    diversion = Diversion([row for row in rows if _transaction(row) not in waiting])
    aside = [row for row in rows if _transaction(row) in waiting]
    for row in aside:
        if row[ID] in refusals:
            diversion.refused[row[ID]] = refusals[row[ID]]
        else:
            diversion.waiting.append(row[ID])
    diversion.topics.update(row[TOPIC] for row in aside)
    parked.wait(aside, refusals)
    return diversion


def closed_prefix(rows: Sequence[OutboxRow], *, most: int) -> int:
    """The length of the longest prefix of at most `most` rows that splits no transaction; the shortest if none is.

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


def _first_rows(
    rows: Sequence[OutboxRow], wanted: Collection[int], refusals: Mapping[int, Refusal]
) -> dict[int, Refusal]:
    """The refusals of these transactions, each under its first record's id."""
    found: dict[int, Refusal] = {}
    left = set(wanted)
    for row in rows if left else ():
        if _transaction(row) in left:
            left.discard(_transaction(row))
            found[row[ID]] = refusals[_transaction(row)]
    return found


def _transaction(row: OutboxRow) -> int:
    transaction_id = row[TRANSACTION_ID]
    assert transaction_id is not None
    return transaction_id
