"""Pages of rows, read from an outbox to publish exactly once, and what the reading statement saw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, TypedDict

from airflow_outbox.values.records import Snapshot

LOWEST_ID: Final = -(2**63)
Cursors = tuple[tuple[int, int], ...]
"""Slots, each with the last id that was read in it."""


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """The records to read next: `after` does not see them, `within` sees them, and their ids are above `above`.

    `after` None excludes nothing; `within` None stands for the reading's own snapshot. `cursors`, unless None, are the
    slots that have more, each with the id to go on above, in place of `above`.
    """

    after: Snapshot | None = None
    within: Snapshot | None = None
    above: int = LOWEST_ID
    cursors: Cursors | None = None


class PageBounds(TypedDict):
    """A page has at most `max_records`, and at most about `max_bytes` in memory, or one record. With
    `transaction_ids`, the rows carry theirs.
    """

    max_records: int
    max_bytes: int
    transaction_ids: bool


def first_cursors(slots: Iterable[int] | None) -> Cursors | None:
    """The beginning of each of these slots (None: of all records, whatever their slots are)."""
    return None if slots is None else tuple((slot, LOWEST_ID) for slot in slots)


OutboxRow = tuple[
    int,
    str,
    str | bytes | None,
    str | bytes | None,
    list[str | None] | None,
    list[str | bytes | None] | None,
    int | None,
    int,
    int | None,
]
"""A record as read for publishing exactly once: id, topic, key, value, header names, header values, partition, about
how many bytes it takes in memory, transaction id (None unless asked for). Header names and values are None, rather than
empty, only where neither they nor the value were read: the record is larger than Kafka's client takes.

It is a plain tuple, since there are hundreds of thousands a second.
"""

ID: Final = 0
TOPIC: Final = 1
KEY: Final = 2
VALUE: Final = 3
HEADER_NAMES: Final = 4
HEADER_VALUES: Final = 5
PARTITION: Final = 6
SIZE: Final = 7
TRANSACTION_ID: Final = 8
HIGHEST_ID: Final = 2**63 - 1
ANY_BYTES: Final = 2**62
_FIRST_RECORDS = 2_500

_size = itemgetter(SIZE)


def total_size(rows: Iterable[OutboxRow]) -> int:
    """Return about how many bytes all rows take in memory."""
    return sum(map(_size, rows))


def count_within(rows: Sequence[OutboxRow], max_bytes: int) -> int:
    """Return how many of the first rows have at most this many bytes of key and value together; at least one."""
    total = 0
    for place, row in enumerate(rows):
        total += row[SIZE]
        if total > max_bytes:
            return max(1, place)
    return len(rows)


class PageSize:
    """Decides how many rows to ask for, so that a page of them always fits into its room.

    The first page is small, so that its records are published while others are read. The rows asked for share the room
    equally. A row larger than its share comes without its value, and the page ends before it. From then on fewer rows
    are asked for, so that rows a little larger than that one fit, too. When no row needs more than half of its share,
    twice as many are asked for: rows that are all alike are read once.
    """

    def __init__(self) -> None:
        self._records = _FIRST_RECORDS

    def shares(self, *, max_records: int, max_bytes: int) -> tuple[int, int]:
        """Return how many rows to ask for, and how large each may be. A row by itself may have any size."""
        records = max(1, min(max_records, max_bytes, self._records))
        return records, max_bytes // records if records > 1 else ANY_BYTES

    def fitting(self, rows: Sequence[OutboxRow], *, share: int, max_bytes: int) -> Sequence[OutboxRow]:
        """Return the rows before the first that is larger than its share."""
        largest = max(map(_size, rows), default=0)
        if largest <= share:
            if self._records <= len(rows) and 2 * self._records * largest <= max_bytes:
                self._records *= 2
            return rows
        place, size = next((place, row[SIZE]) for place, row in enumerate(rows) if row[SIZE] > share)
        self._records = max(1, max_bytes // (size + size // 8))
        return rows[:place]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a window, in id order; of a shard with `cursors`, slot by slot, each in id order.

    - `snapshot`: what the statement saw
    - `complete`: nothing is left of the window
    - `cursors`: the slots that have more (None: the shard has all slots)
    - `written`, `flushed`: a position of Postgres' log by which all that was seen is written, and one up to which it is
      on disk
    - `table_oid`, `file_number`: which table was read, and which of its files: TRUNCATE gives it another
    - `last_drawn`: how far the sequence of the ids was. A writer chose any higher id itself.
    """

    rows: Sequence[OutboxRow]
    snapshot: Snapshot
    complete: bool
    written: int
    flushed: int
    table_oid: int
    file_number: int
    last_drawn: int = HIGHEST_ID
    cursors: Cursors | None = None

    @property
    def highest_id(self) -> int:
        """The highest id of the page; the lowest of all if the page is empty."""
        if self.cursors is None:
            return self.rows[-1][ID] if self.rows else LOWEST_ID
        return max((row[ID] for row in self.rows), default=LOWEST_ID)


@dataclass(frozen=True, slots=True)
class Length:
    """How many records a transaction has, and the last one's id."""

    records: int
    last_id: int
