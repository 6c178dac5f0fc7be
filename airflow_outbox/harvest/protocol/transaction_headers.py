"""Headers that name a record's source transaction, for consumers that put transactions together again.

They may do so across topics, or from a copy of a topic in which the bounds of Kafka's transactions are lost. A record's
place counts from 1 in id order, over all topics. A transaction is whole when `total` places are seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from airflow_outbox.values.pages import Length, OutboxRow


@dataclass(frozen=True, slots=True)
class StampNames:
    """The names of the headers; None leaves one out."""

    outbox_id: str | None = None
    transaction_id: str | None = None
    place: str | None = None
    total: str | None = None

    def __bool__(self) -> bool:
        return any((self.outbox_id, self.transaction_id, self.place, self.total))


class Stamps:
    """Stamps the rows of one term, in the order in which they are read."""

    def __init__(self, names: StampNames, *, outbox_id: UUID) -> None:
        self._names = [names.outbox_id, names.transaction_id, names.place, names.total]
        self._outbox_id = str(outbox_id)
        self._placed: dict[int, int] = {}

    def stamped(self, rows: Sequence[OutboxRow], lengths: Mapping[int, Length]) -> list[OutboxRow]:
        """Return the rows with the headers behind their own."""
        return [self._stamped(row, lengths) for row in rows]

    def _stamped(self, row: OutboxRow, lengths: Mapping[int, Length]) -> OutboxRow:
        number, topic, key, value, names, values, partition, size, transaction_id = row
        assert transaction_id is not None
        total = lengths[transaction_id].records
        place = self._placed.pop(transaction_id, 0) + 1
        if place < total:
            self._placed[transaction_id] = place
        if names is None or values is None:
            return row
        stamps = zip(self._names, (self._outbox_id, str(transaction_id), str(place), str(total)), strict=True)
        given = [(name, stamp) for name, stamp in stamps if name is not None]
        names = [*names, *(name for name, _ in given)]
        values = [*values, *(stamp for _, stamp in given)]
        return number, topic, key, value, names, values, partition, size, transaction_id
