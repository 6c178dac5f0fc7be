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

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

import psycopg
from psycopg.rows import tuple_row

from airflow_outbox.errors import NoWatermarkError, RolledBackError, TicketRefusedError
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import composed
from airflow_outbox.tickets.watermarks import Watermarks
from airflow_outbox.values.records import Ticket

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
    - `clusters`: the clusters on which all of it can be read, if it is published; one that was detached is missing, or
      was reset since. An outbox that is published to a single cluster has `primary`

    `ticket_status` makes it; `str()` of it says all of it in words.
    """

    ticket: Ticket
    state: TicketState
    left: int | None = None
    prepared: str | None = None
    prepared_for: float | None = None
    parked: int = 0
    discarded: int = 0
    reasons: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()

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
            *others, last = self.clusters or ("",)
            where = f" on clusters {', '.join(others)} and {last}" if others else ""
            return f"all of transaction {number} is published{where}"
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
class Outcome:
    """A transaction's outcome: Postgres' word for it (None: forgotten), and its name if it is prepared."""

    status: str | None
    prepared: str | None
    prepared_for: float | None


COMMITTED = Outcome("committed", None, None)
_OPEN = Outcome("in progress", None, None)


@dataclass(frozen=True, slots=True)
class LastWord:
    """Postgres' last word on a transaction, asked after a watermark was known to see it.

    `holds`: the watermark still counts. `outcome`: the transaction's (None: forgotten). `parked`, `discarded` and
    `reasons`: its records'. `clusters`: those that have all that is published of it.
    """

    holds: bool
    outcome: str | None
    parked: int
    discarded: int
    reasons: tuple[str, ...]
    clusters: tuple[str, ...]

    @classmethod
    def read(cls, rows: Sequence[tuple[Any, ...]]) -> Mapping[int, LastWord]:
        """Read the rows of the statement `settled`, by transaction id."""
        return {
            number: cls(holds, outcome, parked, discarded, tuple(reasons), tuple(clusters))
            for number, holds, outcome, parked, discarded, reasons, clusters in rows
        }

    @property
    def confirms(self) -> bool:
        """Whether the transaction has committed, and all of it is published or parked."""
        return self.holds and self.outcome in ("committed", None)

    def of(self, published: TicketStatus) -> TicketStatus:
        """Return the status of a ticket that is published as far as the watermark tells."""
        if self.parked or self.discarded:
            return published.with_parked(self.parked, self.discarded, self.reasons)
        return replace(published, clusters=self.clusters)


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
            f"transaction {ticket.transaction_id} was rolled back, so its records will never be published. "
            "Stash them again if they are still wanted"
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
    """Whether all of a ticket's transaction is published: committed in Postgres and in Kafka. Takes up to five
    statements, and three once the transaction has ended.

    Raises what `ticket_status` raises.
    """
    return ticket_status(connection, ticket, outbox=outbox, counted=False).state is TicketState.PUBLISHED


def ticket_status(
    connection: psycopg.Connection[Any], ticket: Ticket | str, *, outbox: str = "outbox", counted: bool = True
) -> TicketStatus:
    """Return how far a ticket's transaction is; `counted` also counts its remaining records.

    Raises RolledBackError when it was rolled back; TicketRefusedError for a ticket of another outbox or incarnation,
    when Postgres has forgotten it, and when it has not even begun; NoWatermarkError; InvalidTicketError; PostgresError,
    OutboxMissingError.
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
        outcome = _outcome(ask)
        if outcome == _OPEN and not ask("has_begun")[0][0] and (outcome := _outcome(ask)) == _OPEN:
            raise TicketRefusedError(
                f"transaction {asked.transaction_id} has not begun: this database has not given out its id yet. The "
                "ticket comes from another one, or from before a crash that undid the transaction. Look for its rows"
            )
        status = judge(asked, outcome, watermarks)
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


def _outcome(ask: Callable[[str], list[tuple[Any, ...]]]) -> Outcome:
    ((_, *outcome),) = ask("outcomes")
    return Outcome(*outcome)


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
