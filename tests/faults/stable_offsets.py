"""How far consumers that read committed get, and for how long they are held back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from faults.load import IMPATIENT
from support.harvesting import PATIENCE

_CLERKS_PAUSE = 0.2
_LONGEST_STEP = 2 * _CLERKS_PAUSE

Place = tuple[str, int]
"""A topic and a partition."""


class StableOffsets:
    """Asks a broker how far consumers get."""

    def __init__(self, bootstrap: str, places: Iterable[Place]) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **IMPATIENT})
        self._partitions = [TopicPartition(topic, number) for topic, number in places]

    def now(self) -> tuple[dict[Place, int], dict[Place, int]]:
        """The stable offset of each partition, and its end, which may be newer."""
        stable = self._offsets(IsolationLevel.READ_COMMITTED)
        return stable, self._offsets(IsolationLevel.READ_UNCOMMITTED)

    def behind(self) -> set[Place]:
        """The partitions that have more than consumers can read."""
        stable, end = self.now()
        return {place for place, offset in stable.items() if offset < end.get(place, offset)}

    def _offsets(self, level: IsolationLevel) -> dict[Place, int]:
        asked = self._admin.list_offsets(
            {partition: OffsetSpec.latest() for partition in self._partitions},
            isolation_level=level,
            request_timeout=PATIENCE,
        )
        return {(where.topic, where.partition): int(found.result().offset) for where, found in asked.items()}


class Clerk:
    """Notes for how long the stable offset of a partition stood still while there was more: how long a reader that
    reads committed waited. With several partitions, it notes the longest time.

    It looks every 0.2 s. What passes between two looks counts at most as twice that: on a machine, or at a broker, that
    stands still, nobody could have gone on. Its end raises what has kept it from looking.
    """

    def __init__(self, offsets: StableOffsets) -> None:
        self.longest = 0.0
        self._offsets = offsets
        self._since: dict[Place, tuple[int, float]] = {}
        self._clock = 0.0
        self._looks = 0
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clerk", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._look()
        except BaseException as error:  # the client's own error is no Exception under Python 3.11
            self._failure = error

    def _look(self) -> None:
        looked_at = time.monotonic()
        while not self._closing.wait(_CLERKS_PAUSE):
            try:
                stable, end = self._offsets.now()
            except KafkaException:  # the broker does not answer now
                continue
            self._looks += 1
            self._clock += min(time.monotonic() - looked_at, _LONGEST_STEP)
            looked_at, now = time.monotonic(), self._clock
            for place, offset in stable.items():
                known, since = self._since.get(place, (-1, now))
                if offset != known or offset >= end.get(place, offset):
                    known, since = offset, now
                self._since[place] = known, since
                self.longest = max(self.longest, now - since)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._looks, "the clerk has seen nothing"
