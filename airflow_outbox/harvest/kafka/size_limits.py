"""How large records and batches of each topic may be.

Kafka's client measures a record uncompressed, so that size is known beforehand. A broker measures it compressed. A
record that may fit then is sent, alone in its batch, and the broker is believed (`found_too_large`). Each one that does
not fit costs others a leader's term. So after five in a minute, others like it are parked untried, and tried later.
Where the user may not ask for the limit, refused batches become smaller and smaller, until the answer expires.
"""

from __future__ import annotations

import time
from collections import deque

from airflow_outbox.harvest.kafka.record_size import Row, least_size_for_broker
from airflow_outbox.values.pages import KEY, TOPIC, VALUE
from airflow_outbox.values.refusals import Cause, Refusal

_DIVIDED_BY = 8  # for refused batches where nobody knows the limit
_SMALLEST_BATCH = 1000  # bytes; a record above that goes alone
_MOST_FAILED_TRIES = 5
_MINUTE = 60.0


class SizeLimits:
    """Topics' limits, and the sizes that brokers have found too large. One thread at a time uses it."""

    def __init__(self, *, compresses: bool) -> None:
        """`compresses`: the producer compresses records."""
        self._compresses = compresses
        self._limits: dict[str, int] = {}  # by topic, as of when it was asked last
        self._supposed: dict[str, int] = {}  # by topic, where that may not be asked
        self._too_large: set[int] = set()  # records that a broker found too large, by hash
        self._failed_tries: deque[float] = deque(maxlen=_MOST_FAILED_TRIES)  # when a tried record was found too large
        self.smallest: int | None = None
        """The smallest limit of any topic, in bytes; a larger batch may be refused whole."""

    def learn(self, topic: str, limit: int) -> None:
        """A topic has told its limit, in bytes."""
        self._limits[topic] = limit
        self._supposed.pop(topic, None)
        self._find_smallest()

    def found_too_large(
        self, topic: str, key: str | bytes | None, value: str | bytes | None, *, batch_size: int
    ) -> None:
        """A broker found the batch with this record too large: `batch_size` is as TopicCache.found_too_large has it."""
        limit = self._limits.get(topic)
        if batch_size <= (limit or 0):  # so it was alone
            self._too_large.add(_hash(topic, key, value, limit or 0))
            self._failed_tries.append(time.monotonic())
            self._supposed.pop(topic, None)  # perhaps that record was too large, and not the batch
        elif limit is None:
            self._supposed[topic] = max(_SMALLEST_BATCH, batch_size // _DIVIDED_BY)
        self._find_smallest()

    def forget_refusals(self) -> None:
        """Sizes that brokers found too large may fit now. Limits that topics have told still hold."""
        self._too_large.clear()
        self._supposed.clear()
        self._find_smallest()

    def refusal(self, row: Row, limit: int) -> Refusal | None:
        """Return why a record above its topic's limit is not sent. None: it is tried, as it may fit when compressed."""
        above = f"larger than max.message.bytes of topic {row[TOPIC]}, {limit}"
        if not self._compresses or _hash(row[TOPIC], row[KEY], row[VALUE], limit) in self._too_large:
            return Refusal(Cause.TOO_LARGE, above)
        if least_size_for_broker(row) > limit:
            return Refusal(Cause.TOO_LARGE, above)
        if len(self._failed_tries) == _MOST_FAILED_TRIES and time.monotonic() - self._failed_tries[0] < _MINUTE:
            return Refusal(Cause.UNTRIED, f"{above}, unless it compresses well; it is tried a little later")
        return None

    def _find_smallest(self) -> None:
        self.smallest = min([*self._limits.values(), *self._supposed.values()], default=None)


def _hash(topic: str, key: str | bytes | None, value: str | bytes | None, limit: int) -> int:
    return hash((topic, limit, *(part.encode() if isinstance(part, str) else part for part in (key, value))))
