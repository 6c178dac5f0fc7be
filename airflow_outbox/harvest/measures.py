"""A member measures its own harvest: counters, and summaries of the last minute.

Nothing here costs anything per record: it is told once a batch, or less often.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from airflow_outbox.values.metrics import Stage

OTHERS = "(others)"
"""No Kafka topic can have this name."""
_MOST_TOPICS = 1_000
_RECENT = 60.0
_MOST_RECENT = 1_000


class Summary:
    """Durations in seconds: their count and sum, and quantiles of those of the last minute, 1,000 at most."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=_MOST_RECENT)

    def observe(self, seconds: float, *, at: float, weight: int = 1) -> None:
        """Add a duration that stands for `weight` of them."""
        self.count += weight
        self.sum += seconds * weight
        self._recent.append((at, seconds, weight))

    def quantiles(self, *shares: float, at: float) -> list[float]:
        """The shortest duration that each share of the recent ones does not exceed; empty if there are none. The shares
        are given in ascending order.
        """
        recent = sorted((seconds, weight) for when, seconds, weight in self._recent if at - when <= _RECENT)
        total = sum(weight for _, weight in recent)
        found: list[float] = []
        passed = 0
        for seconds, weight in recent:
            passed += weight
            while len(found) < len(shares) and shares[len(found)] * total <= passed:
                found.append(seconds)
        return found


class Measures:
    """One member's own measurements, from its start.

    - `take_over`: the seconds that its last take-over took (None: there was none)
    - `without_extents`: by cluster, batches that went without extents (empty: positions are off)
    - `latency`: from stashing to purging
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is a clock in seconds."""
        self.now = now
        self.elections = 0
        self.fencings = 0
        self.take_over: float | None = None
        self.without_extents: dict[str, int] = {}
        self.latency = Summary()
        self.stages = {stage: Summary() for stage in Stage}
        self._led: set[int] = set()
        self._idle_since: dict[int, float] = {}
        self._total = 0
        self._topics: Counter[str] = Counter()
        self._recent: Counter[str] = Counter()  # since the last progress event

    @property
    def leads(self) -> bool:
        """Whether it harvests now, any shard."""
        return bool(self._led)

    @property
    def published(self) -> int:
        """Records that were published and purged."""
        return self._total + self._recent.total()

    @property
    def topics(self) -> Counter[str]:
        """The same by topic. From the 1,001st topic on, they are counted together."""
        return self._topics + self._recent

    def elected(self, shard: int = 0) -> None:
        """This member is to lead a shard."""
        self.elections += 1
        self._idle_since[shard] = self.now()

    def took_over(self, shard: int = 0) -> float:
        """A term begins to harvest. Returns the seconds since the election, or since the last term that harvested."""
        self._led.add(shard)
        self.take_over = round(self.now() - self._idle_since.get(shard, 0.0), 3)
        return self.take_over

    def term_ended(self, shard: int = 0) -> None:
        """A view has ended, whether it has harvested or not."""
        if shard in self._led:
            self._idle_since[shard] = self.now()
        self._led.discard(shard)

    def publishes(self, topics: Counter[str]) -> None:
        """Records of these topics were published and purged."""
        self._recent.update(topics)

    def take_recent(self) -> dict[str, int]:
        """The records published since the last call, by topic."""
        recent, self._recent = self._recent, Counter()
        self._total += recent.total()
        for topic, count in recent.items():
            is_known = topic in self._topics or len(self._topics) < _MOST_TOPICS
            self._topics[topic if is_known else OTHERS] += count
        return dict(recent)

    def took(self, stage: Stage, since: float) -> None:
        """A batch has taken from `since` until now in this stage."""
        now = self.now()
        self.stages[stage].observe(now - since, at=now)

    def waited(self, seconds: float | None, *, records: int) -> None:
        """This many records were purged; one of them was stashed this many seconds ago (None: nobody knows)."""
        if seconds is not None:
            self.latency.observe(seconds, at=self.now(), weight=records)
