"""Bounds what records that Kafka refuses may cost the others: each refusal ends a leader's term.

A refusal narrows the search for its record (`protocol.parking.Caution`), so that each costs a few terms only. But
somebody may go on writing such records. So a leader bears a number of refusals a minute. Beyond that, the topics of
these refusals are *held*: their records are set aside untried. They are tried again in the parked table, as often as
the bound allows, so that the search goes on there. A topic is held until none of its records has been refused for a
while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from airflow_outbox.values.pages import ID, TOPIC
from airflow_outbox.values.refusals import Cause, Refusal

MOST_REFUSALS = 16
"""In a minute. A term costs the others some tenths of a second; a refused record costs five of them at most."""
MINUTE = 60.0
HELD_FOR = 2 * MINUTE
"""Seconds after a held topic's last refusal. In the second half, records in the parked table may be tried first."""


class RefusedTopics:
    """The latest refusals of one shard's leaders in this process. Times are in seconds, of any one clock."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, Collection[str]]] = deque(maxlen=MOST_REFUSALS)
        self._held: dict[str, tuple[float, Refusal]] = {}  # by topic: its last refusal, and what its records are told

    def refused(self, topics: Collection[str], reason: str, *, at: float) -> None:
        """Kafka refused a batch because of records of these topics."""
        self._latest.append((at, topics))
        if self._is_spent(at):
            topics = {topic for _, refused in self._latest for topic in refused}
        else:
            topics = [topic for topic in topics if topic in self._held]
        self._held.update((topic, (at, _refusal(topic, reason))) for topic in topics)

    def untried(self, rows: Iterable[tuple[Any, ...]], *, at: float, parked: bool) -> dict[int, Refusal]:
        """Return the rows, of the outbox or `parked` ones, that are not to be tried now, by id."""
        if self._held:
            self._held = {topic: held for topic, held in self._held.items() if at - held[0] < HELD_FOR}
        if not self._held or (parked and not self._is_spent(at)):
            return {}
        return {row[ID]: self._held[row[TOPIC]][1] for row in rows if row[TOPIC] in self._held}

    def _is_spent(self, at: float) -> bool:
        return len(self._latest) == MOST_REFUSALS and at - self._latest[0][0] < MINUTE


def _refusal(topic: str, reason: str) -> Refusal:
    text = (
        f"Kafka keeps refusing records of topic {topic}, and each refusal holds others up; it is tried a little later"
    )
    return Refusal(Cause.UNTRIED, f"{text}. Kafka said: {reason}")
