"""Our mark on a committed offset, in its metadata: it says where the position was replicated from.

Consumers, and the tools that reset offsets, write other metadata. So an offset whose mark does not fit was committed by
somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

_NAME = "airflow-outbox/1"


@dataclass(frozen=True, slots=True)
class Mark:
    """A position that was replicated: `source_offset` on the cluster `source` became `offset` here.

    `at` is when, in milliseconds since 1970, by the replicator's clock. `source_id` and `topic_id` are the ids that the
    topic had then on the source and here: a topic that is made again has others, and its offsets mean other records.
    """

    source: str
    source_offset: int
    offset: int
    at: int
    source_id: str = "-"
    topic_id: str = "-"

    @property
    def metadata(self) -> str:
        """The mark as the offset's metadata."""
        return f"{_NAME} {self.source} {self.source_offset} {self.offset} {self.at} {self.source_id} {self.topic_id}"

    @classmethod
    def parse(cls, metadata: str | None, offset: int) -> Self | None:
        """Return the mark of an offset with this metadata; None where it has none.

        A client may commit another offset with the metadata that it found: that is no mark of ours.
        """
        if not metadata or not metadata.startswith(_NAME):
            return None
        name, *parts = metadata.rstrip("\0").split(" ")
        if name != _NAME or len(parts) != 6 or not all(part.isdecimal() for part in parts[1:4]):
            return None
        mark = cls(parts[0], int(parts[1]), int(parts[2]), int(parts[3]), parts[4], parts[5])
        return mark if mark.offset == offset else None


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset in a partition, with our mark if we committed it."""

    offset: int
    mark: Mark | None = None
