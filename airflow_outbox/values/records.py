"""Records, tickets and snapshots: values that all packages pass on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Self
from uuid import UUID

from airflow_outbox.errors import InvalidTicketError

_HEADER_OVERHEAD = 64  # bytes for a name or a value, as the statements have it
Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]

Key = str | bytes | None
Lane = tuple[str, Key]
"""A topic and a key: within it, records are published in the order in which they were stashed."""

_DIGEST = 16  # bytes


def short_key(key: Key) -> Key:
    """Return the key, or a digest of a long one: what to remember a lane by, however large its key is.

    A digest is not of the key's type, and so equals no other key. It is short itself.
    """
    if key is None or len(key) <= 2 * _DIGEST:
        return key
    if isinstance(key, bytes):
        return blake2b(key, digest_size=_DIGEST).hexdigest()
    return blake2b(key.encode(), digest_size=_DIGEST).digest()


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """One event to publish.

    `key` decides partition and order: records of one topic and key are published in the order in which they were
    stashed. `value` None is a tombstone. `headers` is a mapping or pairs; names may repeat, and their order is kept.
    `partition` None leaves the choice to the key. Making one checks nothing: stash() raises InvalidRecordError.
    """

    topic: str
    key: str | bytes
    value: str | bytes | None
    headers: Headers = ()
    partition: int | None = None

    def header_pairs(self) -> list[tuple[str, str | bytes]]:
        """Return the headers as pairs, in order."""
        return list(self.headers.items() if isinstance(self.headers, Mapping) else self.headers)


class MarkedRecord(NamedTuple):
    """A record that is claimed for publishing, as it stands in the outbox."""

    id: int
    topic: str
    key: str | bytes | None
    value: str | bytes | None
    header_names: list[str | None] | None
    header_values: list[str | bytes | None] | None
    partition: int | None

    @property
    def size(self) -> int:
        """The bytes that the record counts against the bound on bytes in flight."""
        size = (len(self.key) if self.key else 0) + (len(self.value) if self.value else 0)
        for part in (*(self.header_names or ()), *(self.header_values or ())):
            size += _HEADER_OVERHEAD + (len(part) if part else 0)
        return size


@dataclass(frozen=True, slots=True)
class Ticket:
    """A writer's receipt, of constant size: enough to ask later whether all of a transaction is published.

    `outbox_id` names the outbox, `incarnation` counts which history of the database this is, and `transaction_id` is
    the 64-bit id of the writer's transaction. `str(ticket)` and `Ticket.parse` carry it as text, through XCom for
    instance. `Ticket.parse` raises InvalidTicketError for any other text.
    """

    outbox_id: UUID
    incarnation: int
    transaction_id: int

    def __str__(self) -> str:
        return f"{self.outbox_id}/{self.incarnation}/{self.transaction_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a ticket from its text. Raises InvalidTicketError for any other text."""
        try:
            outbox_id, incarnation, transaction_id = text.split("/")
            return cls(UUID(outbox_id), int(incarnation), int(transaction_id))
        except (ValueError, AttributeError) as error:
            raise InvalidTicketError(f"not a ticket: {text!r}. Pass on what stash() returned, unchanged") from error


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which transactions are visible: those below `xmax`, except the ones in progress. As Postgres' pg_snapshot."""

    xmin: int
    xmax: int
    in_progress: frozenset[int] = frozenset()

    def sees(self, transaction_id: int) -> bool:
        """Whether the transaction had ended, one way or the other, when the snapshot was taken."""
        return transaction_id < self.xmax and transaction_id not in self.in_progress

    def includes(self, other: Snapshot) -> bool:
        """Whether this snapshot sees every transaction that the other one sees."""
        return other.xmax <= self.xmax and not any(other.sees(number) for number in self.in_progress)

    def meet(self, other: Snapshot) -> Snapshot:
        """Return the snapshot that sees what both see."""
        xmax = min(self.xmax, other.xmax)
        in_progress = frozenset(number for number in self.in_progress | other.in_progress if number < xmax)
        return Snapshot(min(in_progress, default=xmax), xmax, in_progress)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a snapshot as Postgres writes it: `xmin:xmax:xid,xid,…`."""
        xmin, xmax, in_progress = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in in_progress.split(",") if xid))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.in_progress)))}"
