"""What is read of an outbox for publishing exactly once: pages of rows, and what the reading statement saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from airflow_outbox.records import Snapshot


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read next: records that `after` does not see, that `within` sees, with ids above `above`.

    `after` None excludes nothing; `within` None stands for the reading's own snapshot.
    """

    after: Snapshot | None = None
    within: Snapshot | None = None
    above: int = -(2**63)


OutboxRow = tuple[
    int, str, str | bytes, str | bytes | None, list[str | None], list[str | bytes | None], int | None, int, int | None
]
"""A record as it is read for publishing exactly once: id, topic, key, value, header names, header values, partition,
bytes of the page up to and with this row, transaction id (None unless asked for).

A plain tuple, for there are hundreds of thousands a second of them.
"""

BYTES: Final = 7
TRANSACTION_ID: Final = 8


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a window, in id order.

    `snapshot` is what the statement saw; `complete` tells that nothing is left above the last id; `written` is a
    position of Postgres' log by which all that was seen is written, `flushed` one up to which it is on disk.
    """

    rows: Sequence[OutboxRow]
    snapshot: Snapshot
    complete: bool
    written: int
    flushed: int


@dataclass(frozen=True, slots=True)
class Length:
    """How many records of a transaction there are, and the last one's id."""

    records: int
    last_id: int
