"""Several transactional producers take turns, and prove that each other's commits are readable.

A commit is *decided* when Kafka acknowledges it: from then on nothing undoes it. It is *readable* when its markers are
written into every partition that it touched. That comes later, partition by partition, and without a bound while a
partition's leader is away. Only then does a consumer that reads committed get past it. (Open transactions of other
applications in the same partition may still hold such a consumer back.)

Transactions are numbered from 1 and begun in turn, number n by producer (n - 1) mod count. They are committed in the
order of their numbers, one at a time. While one is committed, later ones may be begun and filled.

A commit is known to be readable when one of these has happened:

- Kafka has taken a record of the next transaction of the same producer: the coordinator adds no partition to it before
  all markers of the last one are written. In a busy stream this covers every commit without a request;
- the producer was initialised again: the coordinator answers that after the markers, too;
- the *stable offset* of each partition is past the commit's last record there. This has to be asked for.

Invariants: `readable` never falls, and never exceeds the number of acknowledged commits. A readable commit counts only
once all commits before it are readable.

Source: Kafka's KIP-98, "transaction coordinator" and "last stable offset".
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_outbox.values.extents import TopicAndPartition


class Turns:
    """Whose turn it is, and which commits are known to be readable."""

    def __init__(self, producers: int) -> None:
        self._producers = producers
        self._begun = 0
        self._committed = 0
        self._unproven: dict[int, Mapping[TopicAndPartition, int]] = {}  # commits by number, with their last offsets

    @property
    def readable(self) -> int:
        """How many commits, from the first one on, are known to be readable."""
        return min(self._unproven) - 1 if self._unproven else self._committed

    @property
    def waiting(self) -> Mapping[TopicAndPartition, int]:
        """The offsets that the stable offsets have to pass: the last ones of commits not known to be readable."""
        waiting: dict[TopicAndPartition, int] = {}
        for ends in self._unproven.values():
            waiting.update({place: max(end, waiting.get(place, end)) for place, end in ends.items()})
        return waiting

    @property
    def begun(self) -> int:
        """The number of the last transaction that was begun."""
        return self._begun

    def turn(self, number: int) -> int:
        """The producer of a transaction."""
        return (number - 1) % self._producers

    def begin(self) -> int:
        """Begin a transaction. Return whose turn it is."""
        self._begun += 1
        return self.turn(self._begun)

    def taken(self, number: int) -> None:
        """Kafka has taken a record of this transaction."""
        self._unproven.pop(number - self._producers, None)

    def committed(self, ends: Mapping[TopicAndPartition, int]) -> None:
        """Kafka has acknowledged the next commit. `ends`: its last offset in each partition."""
        self._committed += 1
        if ends:  # else there is nothing to read
            self._unproven[self._committed] = ends

    def initialised(self, producer: int) -> None:
        """A producer was initialised again, after its last commit."""
        for number in [number for number in self._unproven if self.turn(number) == producer]:
            del self._unproven[number]

    def is_unproven(self, producer: int) -> bool:
        """Whether a commit of this producer is not known to be readable."""
        return any(self.turn(number) == producer for number in self._unproven)

    def stable(self, offsets: Mapping[TopicAndPartition, int]) -> None:
        """The stable offsets are at least these."""
        for number, ends in list(self._unproven.items()):
            if all(offsets.get(place, 0) > end for place, end in ends.items()):
                del self._unproven[number]
