"""An asset's news: the records that its outbox has published since the last news. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from uuid import UUID

    from airflow_outbox.tickets.waiters import Account


@dataclass(frozen=True, slots=True)
class Position:
    """The last news that an asset got: up to and with batch number `batch` of an incarnation, with the number of
    records of each topic published by then.
    """

    incarnation: int
    batch: int
    topics: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, account: Account, topics: Collection[str] | None) -> Self:
        """An account's position for these topics (None: all)."""
        counts = {topic: count for topic, count in account.topics.items() if topics is None or topic in topics}
        return cls(account.watermarks.incarnation, account.batch, counts)

    @classmethod
    def read(cls, stored: Any) -> Self | None:
        """Read the result of `as_json`; None for anything else."""
        try:
            topics = {str(topic): int(count) for topic, count in stored["topics"].items()}
            return cls(int(stored["incarnation"]), int(stored["batch"]), topics)
        except (TypeError, KeyError, ValueError, AttributeError):
            return None

    def as_json(self) -> dict[str, Any]:
        return {"incarnation": self.incarnation, "batch": self.batch, "topics": dict(self.topics)}

    def after(self, payload: Mapping[str, Any]) -> Position:
        """The position after an event; this one, unless the event begins here.

        An event that came before, such as that of a triggerer which was taken for dead, changes nothing. Nor does one
        that leaves a gap: the event before it went nowhere, and must be told again.
        """
        incarnation = payload["incarnation"]
        before = self if self.incarnation >= incarnation else Position(incarnation, 0)
        if before.incarnation > incarnation:
            return before
        totals = {topic: max(total, before.topics.get(topic, 0)) for topic, total in payload["totals"].items()}
        begins = {topic: payload["totals"][topic] - count for topic, count in payload["topics"].items()}
        if any(begin > before.topics.get(topic, 0) for topic, begin in begins.items()):
            return self
        return Position(incarnation, max(before.batch, payload["batches"][1]), {**before.topics, **totals})

    def since(self, earlier: Position) -> dict[str, int]:
        """How many records of each topic were published since; after a change of incarnation, all of the new one's."""
        before = earlier.topics if earlier.incarnation == self.incarnation else {}
        counts = {topic: count - before.get(topic, 0) for topic, count in self.topics.items()}
        return {topic: count for topic, count in counts.items() if count > 0}


def position_key(outbox_id: UUID | str) -> str:
    """The key of an asset's state store under which its position in an outbox is kept."""
    return f"airflow_outbox.published.{outbox_id}"


def publication(outbox: str, account: Account, now: Position, before: Position) -> dict[str, Any] | None:
    """The payload of an asset's event; None when nothing was published."""
    topics = now.since(before)
    if not topics:
        return None
    watermarks = account.watermarks
    first = before.batch + 1 if before.incarnation == now.incarnation else now.batch
    return {
        "outbox": outbox,
        "outbox_id": str(watermarks.outbox_id),
        "incarnation": now.incarnation,
        "watermark": [None if shard is None else str(shard) for shard in watermarks.shards],
        "batches": [min(first, now.batch), now.batch],
        "topics": topics,
        "published": sum(topics.values()),
        "totals": {topic: now.topics[topic] for topic in topics},
    }
