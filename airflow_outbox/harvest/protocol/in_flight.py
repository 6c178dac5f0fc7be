"""The records in flight. Records of a key go out one at a time (mark-purge/reset, as goharvest defines it).

A record is *admitted* when it has been marked, *sent* when the log has it, *settled* when the log has reported on it,
and *forgotten* when it has been purged. Records of one topic and key form a queue in id order; the next is sent only
when the one before has been delivered. After a failure nothing more is sent. Unsent records are given up, and sent ones
settle. The records that are left in the outbox are marked again under a new view.

Invariants:

- No two records of one topic and key are sent and unsettled at the same time, and they are sent in the order of
  admission.
- A record is counted against the bounds from its admission until it is forgotten or given up.
- After the first failure the caller is never asked to `send` again.

Only one record of a key is ever uncertain. That keeps order without waiting for whole batches: at worst, a failure or
a change of leaders sends that record once more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from airflow_outbox.values.records import Lane, MarkedRecord


class InFlight:
    """The records between mark and purge of one term. Methods that return records return those to send now."""

    def __init__(self, *, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._waiting: dict[Lane, deque[MarkedRecord]] = {}
        self._waiting_records = 0
        self.records = 0
        self.bytes = 0
        self.unsettled = 0
        self.failed = False

    @property
    def room(self) -> tuple[int, int]:
        """How many more records and bytes may be marked now; none if either is zero or below."""
        return self._max_records - self.records, self._max_bytes - self.bytes

    def holds(self, lane: Lane) -> bool:
        """Whether records of a lane are sent, or wait to be, with an unknown outcome."""
        return lane in self._waiting

    def admit(self, records: Iterable[MarkedRecord]) -> list[MarkedRecord]:
        """Take newly marked records, in id order. Return those whose key has nothing in flight."""
        ready: list[MarkedRecord] = []
        for record in records:
            self.records += 1
            self.bytes += record.size
            lane = (record.topic, record.key)
            queue = self._waiting.get(lane)
            if queue is None:
                self._waiting[lane] = deque()
                ready.append(record)
            else:
                queue.append(record)
                self._waiting_records += 1
        if self.failed:
            self._give_up(ready)
            return []
        self.unsettled += len(ready)
        return ready

    def delivered(self, record: MarkedRecord) -> MarkedRecord | None:
        """A record was delivered. Return the next of its key, if any."""
        self.unsettled -= 1
        lane = (record.topic, record.key)
        queue = self._waiting[lane]
        if self.failed or not queue:
            if not queue:
                del self._waiting[lane]
            return None
        self._waiting_records -= 1
        self.unsettled += 1
        return queue.popleft()

    def undeliverable(self, record: MarkedRecord) -> None:
        """A record was not, or perhaps not, delivered. Nothing more goes out in this term."""
        self.unsettled -= 1
        self._give_up([record])
        self.stop()

    def stop(self) -> None:
        """Send nothing more: give up the records that wait for their key. Sent ones still settle."""
        self.failed = True
        for queue in self._waiting.values():
            self._give_up(queue)
            self._waiting_records -= len(queue)
            queue.clear()

    def forget(self, records: Iterable[MarkedRecord]) -> None:
        """Records were purged."""
        self._give_up(records)

    def _give_up(self, records: Iterable[MarkedRecord]) -> None:
        for record in records:
            self.records -= 1
            self.bytes -= record.size
