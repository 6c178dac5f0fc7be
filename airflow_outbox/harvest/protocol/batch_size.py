"""How much goes into a batch, by how fast Kafka takes it: a batch is to be sent within seconds, far from the time at
which Kafka gives a transaction up, also where a quota or a slow broker lets little through.

A process begins with small batches. A batch that was sent in less than half of the time that it may take lets the next
ones be twice as large; one that took longer than that time makes them smaller in proportion, and one that could not be
sent at all makes them a quarter of it. So no size is tried for ever in vain.
"""

from __future__ import annotations

_FIRST = 1_000_000
_LEAST = 50_000
_MOST = 2**40
_DIVIDED_BY = 4


class Pace:
    """Bytes of key and value that a batch may have; it lasts as long as the process."""

    def __init__(self, *, longest: float) -> None:
        """`longest` is how many seconds the sending of a batch is to take at most."""
        self._longest = longest
        self.max_bytes = _FIRST

    def took(self, size: int, *, seconds: float) -> None:
        """So many bytes were sent in this time."""
        if seconds > self._longest:
            self.max_bytes = max(_LEAST, int(min(size, self.max_bytes) * self._longest / seconds))
        elif 2 * seconds < self._longest and 2 * size > self.max_bytes:
            self.max_bytes = min(2 * self.max_bytes, _MOST)

    def failed(self, size: int, *, seconds: float) -> None:
        """So many bytes could not be sent in this time."""
        if seconds > self._longest:
            self.max_bytes = max(_LEAST, min(size, self.max_bytes) // _DIVIDED_BY)
