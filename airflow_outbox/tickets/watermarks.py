"""How far an outbox is published, as the fence rows of its shards tell it, and as announcements do."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple, Self
from uuid import UUID

from airflow_outbox.errors import OutboxMissingError, TicketRefusedError
from airflow_outbox.values.records import Snapshot, Ticket


class _ShardRow(NamedTuple):
    """A row of the statement `watermarks`, with which those of `account` begin."""

    outbox_id: UUID
    incarnation: int
    delivery: str | None
    watermark: str | None
    doubt: str | None
    server: str
    secret: UUID | None
    shard: int
    layout: int
    is_divided: bool


@dataclass(frozen=True, slots=True)
class Watermarks:
    """How far an outbox is published: the watermark of each shard (None: none is known), in this `layout`.

    `is_divided`: there can be several shards, which are announced on another channel. `doubt` is why nobody can tell
    (None: it can be told). `server` names the run of the server that answered: the answer means nothing to another.
    `secret` proves announcements (None: none is believed).
    """

    outbox_id: UUID
    incarnation: int
    delivery: str | None
    shards: tuple[Snapshot | None, ...]
    doubt: str | None = None
    server: str | None = None
    secret: UUID | None = None
    layout: int = 1
    is_divided: bool = False

    @classmethod
    def read(cls, rows: Sequence[tuple[Any, ...]]) -> Self:
        """Read the rows of the statements `watermarks` and `account`. Raises OutboxMissingError."""
        if not rows:
            raise OutboxMissingError
        found = [_ShardRow._make(row[: len(_ShardRow._fields)]) for row in rows]
        first = found[0]
        shards = tuple(None if row.watermark is None else Snapshot.parse(row.watermark) for row in found)
        doubt = next((row.doubt for row in found if row.doubt is not None), None)
        return cls(
            first.outbox_id,
            first.incarnation,
            first.delivery,
            shards,
            doubt,
            first.server,
            first.secret,
            first.layout,
            first.is_divided,
        )

    def see(self, ticket: Ticket) -> bool:
        """Whether all that the ticket's transaction may have committed is published. Raises TicketRefusedError."""
        self.require(ticket)
        return self.doubt is None and all(
            watermark is not None and watermark.sees(ticket.transaction_id) for watermark in self.shards
        )

    def require(self, ticket: Ticket) -> None:
        """Raise TicketRefusedError unless the ticket belongs to this outbox and incarnation.

        A database in doubt may have been restored to before an adoption. So it refuses no ticket of a later
        incarnation: nobody can tell.
        """
        if ticket.outbox_id != self.outbox_id:
            raise TicketRefusedError(
                f"the ticket comes from outbox {ticket.outbox_id}, but this is outbox {self.outbox_id}. Ask the "
                "outbox, and the database, that the ticket comes from"
            )
        if ticket.incarnation == 0:
            raise TicketRefusedError(
                "an earlier release recorded the ticket's commit without its incarnation, so nobody can tell whether "
                "it is published. Look for the transaction's rows"
            )
        if ticket.incarnation < self.incarnation or (ticket.incarnation > self.incarnation and self.doubt is None):
            raise TicketRefusedError(
                f"the ticket is from incarnation {ticket.incarnation}, but the outbox is in {self.incarnation}: the "
                "database was restored or failed over, and its transaction ids name other transactions now. See "
                "<outbox>_adopted, and look for the transaction's rows"
            )

    @property
    def layout_announced(self) -> list[str]:
        """The layout as an announcement names it: it does where there are several shards."""
        return [str(self.layout)] if self.is_divided else []

    def proves(self, text: str, proof: str) -> bool:
        """Whether the author of an announcement knows the outbox's secret."""
        return self.secret is not None and hmac.compare_digest(proof_of(text, self.secret).encode(), proof.encode())

    def later(self, shard: int, watermark: Snapshot) -> Self:
        """Return the same with a shard's announced watermark, unless that is known, or there is doubt."""
        known = self.shards[shard]
        if self.doubt is not None:
            return self
        if known is not None and not watermark.includes(known):
            return self
        return replace(self, shards=(*self.shards[:shard], watermark, *self.shards[shard + 1 :]))

    def continues(self, other: Watermarks) -> bool:
        """Whether the other one's answers still count beside this one."""
        return self.doubt is None and (self.outbox_id, self.incarnation, self.server, self.layout) == (
            other.outbox_id,
            other.incarnation,
            other.server,
            other.layout,
        )


def proof_of(text: str, secret: UUID) -> str:
    """Return the proof at the end of an announcement with this text (sql/fence.sql: announcement)."""
    return sha256(secret.bytes + sha256(secret.bytes + text.encode()).digest()).hexdigest()
