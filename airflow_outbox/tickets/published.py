"""Tickets: is all of a transaction published?

`stash` gives the writer a ticket, the id of its transaction. All of it is *published* when:

- the transaction has committed
- the outbox's watermark sees it
- none of its records is parked

Then every record of it is in Kafka, committed, for every consumer to read. The watermark in the database is up to a
second late; a listener hears earlier (`airflow_outbox.tickets.listener`).

A ticket names a transaction by its id alone. So it holds only if Postgres has acknowledged the transaction's commit:
with `synchronous_commit=off`, a crash can undo it and give the id to another. And it holds only within an incarnation:
after a restore, ids name other transactions.

A dump, a clone and a standby copy the fence row with its watermark, while their transaction ids go their own ways. So
the view `<outbox>_published` compares the recorded history with that of the database that answers. Where they differ,
and while harvesting is halted, it shows its *doubt* and no watermark. Then no ticket gets an answer, neither yes nor
no.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from typing import Any, Self
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from airflow_outbox.errors import NoWatermarkError, OutboxMissingError, RolledBackError, TicketRefusedError
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import composed
from airflow_outbox.values.records import Snapshot, Ticket

MOST_COUNTED = 100_000
"""Upper limit when counting the remaining records, which bounds the time that takes."""
GAVE_UP = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)
"""Errors of a statement that took longer than Postgres was told to allow: nothing is known then."""


class TicketState(Enum):
    """How far a transaction is.

    - `OPEN`: it has not ended.
    - `PREPARED`: nor has it; it waits for COMMIT PREPARED or ROLLBACK PREPARED, which may never come.
    - `WAITING`: it has committed, and not all of it is known to be published.
    - `HALTED`: nobody can tell until an operator acts. Harvesting is halted, or the database has another history than
      the one that was harvested.
    - `PARKED`: some of its records are set aside or were discarded, all others are published.
    - `PUBLISHED`: all of it.
    """

    OPEN = "open"
    PREPARED = "prepared"
    WAITING = "waiting"
    HALTED = "halted"
    PARKED = "parked"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class TicketStatus:
    """How far a ticket's transaction is.

    - `left`: how many of its records are in the outbox (None: not known, or the role may not look; above MOST_COUNTED:
      more than that)
    - `prepared`, `prepared_for`: a prepared transaction's name, and for how many seconds it has been one
    - `parked`: how many records are set aside
    - `discarded`: how many an operator has thrown away
    - `reasons`: some reasons for parking; or why nobody can tell of a halted one
    """

    ticket: Ticket
    state: TicketState
    left: int | None = None
    prepared: str | None = None
    prepared_for: float | None = None
    parked: int = 0
    discarded: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether it stays so."""
        return self.state is TicketState.PUBLISHED or self.discarded > 0

    def with_parked(self, waiting: int, discarded: int, reasons: Sequence[str]) -> Self:
        """Return the same with these records, parked or discarded."""
        aside = replace(self, state=TicketState.PARKED, left=None, parked=waiting)
        return replace(aside, discarded=discarded, reasons=tuple(reasons))

    def __str__(self) -> str:
        number = self.ticket.transaction_id
        if self.state is TicketState.PREPARED:
            return (
                f"transaction {number} was prepared as {self.prepared!r} {self.prepared_for or 0:.0f} s ago and has "
                "not ended. If its client does not end it, run COMMIT PREPARED or ROLLBACK PREPARED"
            )
        if self.state is TicketState.OPEN:
            return f"transaction {number} has not ended"
        if self.state is TicketState.PUBLISHED:
            return f"all of transaction {number} is published"
        if self.state is TicketState.HALTED:
            return (
                f"nobody can tell whether transaction {number} is published: {'; '.join(self.reasons)}. "
                "`airflow-outbox check` shows more. If harvesting is halted, `airflow-outbox adopt` ends that"
            )
        if self.state is TicketState.PARKED:
            discarded = f", {self.discarded} were discarded" if self.discarded else ""
            reasons = f": {'; '.join(self.reasons)}" if self.reasons else ""
            return (
                f"{self.parked} records of transaction {number} are parked{discarded}{reasons}. All others are "
                "published. `airflow-outbox parked list` shows them"
            )
        some = "some records" if self.left is None else f"{self.left} records"
        if self.left is not None and self.left > MOST_COUNTED:
            some = f"more than {MOST_COUNTED:,} records"
        return f"transaction {number} is committed; {some} of it still wait to be published"


@dataclass(frozen=True, slots=True)
class Watermarks:
    """How far an outbox is published: the watermark of each shard (None: none is known).

    `doubt` is why nobody can tell (None: it can be told). `server` names the run of the server that answered: the
    answer means nothing to another. `secret` proves announcements (None: none is believed).
    """

    outbox_id: UUID
    incarnation: int
    delivery: str | None
    shards: tuple[Snapshot | None, ...]
    doubt: str | None = None
    server: str | None = None
    secret: UUID | None = None

    @classmethod
    def read(cls, rows: Sequence[tuple[Any, ...]]) -> Self:
        """Read the rows of the statements `watermarks` and `account`. Raises OutboxMissingError."""
        if not rows:
            raise OutboxMissingError
        outbox_id, incarnation, delivery, _, _, server, secret, *_ = rows[0]
        shards = tuple(None if row[3] is None else Snapshot.parse(row[3]) for row in rows)
        doubt = next((row[4] for row in rows if row[4] is not None), None)
        return cls(outbox_id, incarnation, delivery, shards, doubt, server, secret)

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
        return self.doubt is None and (self.outbox_id, self.incarnation, self.server) == (
            other.outbox_id,
            other.incarnation,
            other.server,
        )


def proof_of(text: str, secret: UUID) -> str:
    """Return the proof at the end of an announcement with this text (sql/fence.sql: announcement)."""
    return sha256(secret.bytes + sha256(secret.bytes + text.encode()).digest()).hexdigest()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A transaction's outcome: Postgres' word for it (None: forgotten), and its name if it is prepared."""

    status: str | None
    prepared: str | None
    prepared_for: float | None


COMMITTED = Outcome("committed", None, None)


@dataclass(frozen=True, slots=True)
class LastWord:
    """Postgres' last word on a transaction, asked after a watermark was known to see it.

    `holds`: the watermark still counts. `outcome`: the transaction's (None: forgotten). `parked`, `discarded` and
    `reasons`: its records'.
    """

    holds: bool
    outcome: str | None
    parked: int
    discarded: int
    reasons: tuple[str, ...]

    @classmethod
    def read(cls, rows: Sequence[tuple[Any, ...]]) -> Mapping[int, LastWord]:
        """Read the rows of the statement `settled`, by transaction id."""
        return {
            number: cls(holds, outcome, parked, discarded, tuple(reasons))
            for number, holds, outcome, parked, discarded, reasons in rows
        }

    @property
    def confirms(self) -> bool:
        """Whether the transaction has committed, and all of it is published or parked."""
        return self.holds and self.outcome in ("committed", None)

    def of(self, published: TicketStatus) -> TicketStatus:
        """Return the status of a ticket that is published as far as the watermark tells."""
        if self.parked or self.discarded:
            return published.with_parked(self.parked, self.discarded, self.reasons)
        return published


def judge(ticket: Ticket, outcome: Outcome, watermarks: Watermarks) -> TicketStatus:
    """Return how far a ticket's transaction is, leaving aside parked records.

    Raises RolledBackError; TicketRefusedError, also when Postgres has forgotten the outcome; NoWatermarkError when the
    outbox is harvested in a way in which nobody will ever know.
    """
    seen = watermarks.see(ticket)
    if watermarks.doubt is not None:
        return TicketStatus(ticket, TicketState.HALTED, reasons=(watermarks.doubt,))
    if outcome.status == "aborted":
        raise RolledBackError(
            f"transaction {ticket.transaction_id} was rolled back, so its records will never be published"
        )
    if outcome.status is None:
        raise TicketRefusedError(
            f"transaction {ticket.transaction_id} is so old that Postgres no longer knows whether it was committed. If "
            f"it was, its records are {'' if seen else 'not known to be '}published. Look for its rows"
        )
    if outcome.status == "in progress":
        state = TicketState.OPEN if outcome.prepared is None else TicketState.PREPARED
        return TicketStatus(ticket, state, None, outcome.prepared, outcome.prepared_for)
    if seen:
        return TicketStatus(ticket, TicketState.PUBLISHED, 0)
    if watermarks.delivery == "at_least_once":
        raise NoWatermarkError
    return TicketStatus(ticket, TicketState.WAITING)


def published(connection: psycopg.Connection[Any], ticket: Ticket | str, *, outbox: str = "outbox") -> bool:
    """Whether all of a ticket's transaction is published: committed in Postgres and in Kafka. Takes up to three
    statements.

    Raises what `ticket_status` raises.
    """
    return ticket_status(connection, ticket, outbox=outbox, counted=False).state is TicketState.PUBLISHED


def ticket_status(
    connection: psycopg.Connection[Any], ticket: Ticket | str, *, outbox: str = "outbox", counted: bool = True
) -> TicketStatus:
    """Return how far a ticket's transaction is; `counted` also counts its remaining records.

    Raises RolledBackError when it was rolled back; TicketRefusedError for a ticket of another outbox or incarnation,
    and when Postgres has forgotten it; NoWatermarkError; InvalidTicketError; PostgresError, OutboxMissingError.
    """
    name = OutboxName.parse(outbox)
    asked = Ticket.parse(ticket) if isinstance(ticket, str) else ticket
    values = values_of([asked.transaction_id], asked.incarnation, name)

    def ask(statement: str, **more: object) -> list[tuple[Any, ...]]:
        return cursor.execute(query(statement, name), {**values, **more}).fetchall()

    with translated(name), connection.cursor(row_factory=tuple_row) as cursor:
        watermarks = Watermarks.read(ask("watermarks"))
        watermarks.require(asked)
        if watermarks.doubt is not None:
            return judge(asked, COMMITTED, watermarks)
        # Asked after the watermark: transactions that it saw as ended have ended here, too.
        ((_, *outcome),) = ask("outcomes")
        status = judge(asked, Outcome(*outcome), watermarks)
        if status.state is TicketState.PUBLISHED:
            word = LastWord.read(ask("settled", server=watermarks.server))[asked.transaction_id]
            if word.confirms:
                return word.of(status)
            status = TicketStatus(asked, TicketState.WAITING)  # the history has changed between the two statements
        if not counted or status.state is not TicketState.WAITING or not ask("may_count")[0][0]:
            return status
        with suppress(*GAVE_UP), connection.transaction():
            return replace(status, left=left_of([asked.transaction_id], ask("left"))[asked.transaction_id])
        return status


def left_of(transaction_ids: Collection[int], rows: Sequence[tuple[int, int]]) -> Mapping[int, int]:
    """Return how many records each of these transactions has left, as far as the statement `left` has counted."""
    counts = dict(rows)
    if sum(counts.values()) <= MOST_COUNTED:
        return {number: counts.get(number, 0) for number in transaction_ids}
    last, count = rows[-1]
    left = {number: counts.get(number, 0) for number in transaction_ids if number < last}
    return left | ({last: count} if count > MOST_COUNTED else {})


def values_of(transaction_ids: Collection[int], incarnation: int, name: OutboxName) -> dict[str, Any]:
    """Return the values for the statements about tickets."""
    return {
        "transaction_ids": [str(number) for number in transaction_ids],
        "incarnation": incarnation,
        "outbox": name.text(),
        "most": MOST_COUNTED,
    }


def query(statement: str, name: OutboxName) -> Any:
    """Return a statement about tickets for one outbox."""
    return composed(f"tickets.{statement}", name)
