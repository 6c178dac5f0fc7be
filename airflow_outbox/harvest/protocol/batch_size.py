"""How much goes into a batch, by how fast Kafka takes it.

A batch should be sent within seconds, long before Kafka gives its transaction up. This holds also when a quota or a
slow broker lets little through.

A process begins with small batches. Each batch sets the size of the next ones:

- sent in less than half of the time that it may take: twice as large;
- sent in more than that time: smaller in proportion;
- not sent at all within that time: a quarter of it. So no size that fails is tried for ever.
"""

from __future__ import annotations

_FIRST = 1_000_000
_LEAST = 50_000
_MOST = 2**40
_DIVIDED_BY = 4


class Pace:
    """The bytes of key and value that a batch may have. Lasts as long as the process."""

    def __init__(self, *, longest: float) -> None:
        """`longest`: sending a batch should take at most this many seconds."""
        self._longest = longest
        self.max_bytes = _FIRST

    def took(self, size: int, *, seconds: float) -> None:
        """This many bytes were sent in this time."""
        if seconds > self._longest:
            self.max_bytes = max(_LEAST, int(min(size, self.max_bytes) * self._longest / seconds))
        elif 2 * seconds < self._longest and 2 * size > self.max_bytes:
            self.max_bytes = min(2 * self.max_bytes, _MOST)

    def failed(self, size: int, *, seconds: float) -> None:
        """This many bytes could not be sent in this time."""
        if seconds > self._longest:
            self.max_bytes = max(_LEAST, min(size, self.max_bytes) // _DIVIDED_BY)
