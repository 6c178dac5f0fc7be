"""Commitment: every batch is committed on all logs, or in the end on none, and only then completed in Postgres.

A *log* is one cluster, with the outbox's topics and a ledger. The logs share nothing, so Postgres coordinates them. One
log is the *primary*, the others are *backups*. A batch goes through these states:

    BEGUN ─► PREPARED on all ─► COMMITTED on the primary ─► COMMITTED on the backups ─► READABLE on all ─► COMPLETED

- *begun*: it has its number, and records of it may be on their way.
- *prepared* on a log: all its records are produced and flushed, in an open transaction. Nobody can read them. With
  backups, the batch's entries follow on all logs, before it is committed on any.
- *committed* on a log: the log has acknowledged the commit, of the records and of the batch's entry in that ledger.
- *readable* on a log: its markers are written there, so consumers that read committed get past it.
- *completed*: Postgres has deleted the batch's records, or moved them into the parked table.

Batches are numbered without a gap, and each log passes through each state in the order of the numbers. So three numbers
describe a log: the last batch that is prepared, the last that is committed, and the last that is readable.

Invariants:

- `completed ≤ readable ≤ committed ≤ prepared ≤ begun`, on each log.
- A batch is committed nowhere before it is prepared everywhere: a log that refuses a record does so while nothing is
  committed.
- A batch is committed on no backup before it is on the primary: what a backup has, the primary has.
- A batch is committed nowhere before the one before it is committed everywhere. So at most one batch is on some logs
  and not on others, and whoever recovers has only that one to complete.
- A batch is completed after it is readable everywhere, and after the one before it. Until then its records stay in the
  outbox or in the parked table, and it can be committed on a log that lacks it.

Recovery begins where all logs have the same batches, and all of these are completed.

With one log, each batch needs one commit, as soon as it is prepared and the one before it is committed. Then there is
nothing to wait for but that log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.ledger import Entry

PRIMARY = 0
"""The number of the primary log."""
MAX_UNCOMPLETED = 6
MAX_UNCOMPLETED_SMALL = 64
"""How many batches may be committed and not completed: the second number where these hold few records."""


@dataclass(slots=True)
class _Log:
    """The last batch in each state. Up to `readable`, all are."""

    prepared: int
    committed: int
    readable: int


class Commitment:
    """The batches of one term, from the one after `last`, on the primary and `backups` other logs.

    Logs are known by their numbers, the primary's being `PRIMARY`. Up to `max_records`, the uncompleted batches are
    small.
    """

    def __init__(self, *, last: int, max_records: int, backups: int = 0) -> None:
        self._last = last
        self._begun = last
        self._completed = last
        self._logs = [_Log(last, last, last) for _ in range(1 + backups)]
        self._max_records = max_records
        self._uncompleted: deque[tuple[Entry, Batch]] = deque()
        self._records = 0

    @property
    def completed(self) -> int:
        """The last completed batch."""
        return self._completed

    @property
    def records(self) -> int:
        """How many records are in batches that are committed everywhere and not completed."""
        return self._records

    @property
    def oldest(self) -> tuple[Entry, Batch] | None:
        """The next batch to complete, and its entry in the ledger; None until it is committed everywhere."""
        return self._uncompleted[0] if self._uncompleted else None

    @property
    def is_far_ahead(self) -> bool:
        """Whether no batch is to be begun now: too much is committed and not completed."""
        are_small = self._records < self._max_records
        return len(self._uncompleted) >= (MAX_UNCOMPLETED_SMALL if are_small else MAX_UNCOMPLETED)

    def begin(self) -> int:
        """Begin a batch. Return its number."""
        self._begun += 1
        return self._begun

    def prepared(self, log: int) -> None:
        """The next batch is prepared on a log."""
        assert self._logs[log].prepared < self._begun, "a batch is prepared that was not begun"
        self._logs[log].prepared += 1

    def due(self, batch: int) -> Sequence[int]:
        """The logs on which a batch is to be committed now, in any order or at once. Ask again after these commits.

        Empty while the batch has to wait, and when it is committed everywhere.
        """
        if any(log.prepared < batch or log.committed < batch - 1 for log in self._logs):
            return []
        if self._logs[PRIMARY].committed < batch:
            return [PRIMARY]
        return [number for number, log in enumerate(self._logs) if log.committed < batch]

    def committed(self, log: int, entry: Entry, batch: Batch) -> None:
        """A batch is committed on a log on which it was due, with its entry."""
        assert log in self.due(batch.number), "a batch is committed that was not due"
        self._logs[log].committed = batch.number
        if all(each.committed == batch.number for each in self._logs):
            self._uncompleted.append((entry, batch))
            self._records += batch.records

    def readable(self, log: int, commits: int) -> None:
        """This many of the term's commits on a log, from the first one on, are known to be readable."""
        self._logs[log].readable = self._last + commits

    @property
    def may_complete(self) -> bool:
        """Whether the oldest uncompleted batch is readable everywhere, so that it may be completed."""
        return all(self._completed < log.readable for log in self._logs)

    def complete(self) -> None:
        """The oldest uncompleted batch is completed."""
        assert self.may_complete, "a batch is completed that not everybody can read"
        _, batch = self._uncompleted.popleft()
        self._completed = batch.number
        self._records -= batch.records
