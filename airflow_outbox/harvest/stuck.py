"""What a process remembers of transactional ids whose last transaction Kafka can't end.

When a partition lacks brokers, the markers of the transactions that touch it wait for them, and until they are written
the coordinator lets no producer of the same id begin. Other partitions have their markers, and other ids can be used.
An id may be left alone, and fenced later, if both hold:

- the producer that has used it last belongs to this process and was given up, so that it begins no other transaction
  (`protocol.recovery.require_own`);
- it is known of its last transaction whether it is committed: nobody ever asked for that, or the coordinator has
  acknowledged it, and the ledger tells of it. What is not known is *uncertain*: that id has to be fenced.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from airflow_outbox.errors import KafkaError


@dataclass(slots=True)
class StuckIds:
    """Ids that are left alone, and those that must not be."""

    left_alone: set[str] = field(default_factory=set)
    uncertain: set[str] = field(default_factory=set)

    def leave_alone(self, ids: Collection[str]) -> None:
        """These have a transaction that can't be ended. Raises KafkaError if it may yet turn out to be committed."""
        if unknown := self.uncertain.intersection(ids):
            raise KafkaError(
                f"whether the last transaction of {' and '.join(sorted(unknown))} is committed can't be told: a "
                "partition that it touches lacks brokers. Bring them back"
            )
        self.left_alone.update(ids)

    def fenced(self, transactional_id: str) -> None:
        """All earlier transactions of this id have ended."""
        self.left_alone.discard(transactional_id)
        self.uncertain.discard(transactional_id)
