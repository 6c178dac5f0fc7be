"""The listener's memory: what is known of an outbox, and who waits for what. It asks nobody.

Knowledge holds on one connection. On a new one another server may answer, whose history gives the same transaction ids
to other transactions. So a lost connection wipes out the announced watermarks, and what became of transactions. Only a
look after the waiter came can refuse its ticket. Since the last look the outbox may have been adopted; or a pooler may
have changed to a server where that adoption was undone by a restore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from airflow_outbox.errors import OutboxError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.published import COMMITTED, Outcome, TicketState, TicketStatus, judge
from airflow_outbox.tickets.watermarks import Watermarks
from airflow_outbox.values.records import Snapshot, Ticket

GREETING_INTERVAL = 0.5  # newcomers share a statement: announcements must not wait for them
LOOK_INTERVAL = 1.0  # where nothing is heard, and for followers
NEVER = float("-inf")
_QUIET_LOOK_INTERVAL = 10.0  # where announcements come
_HEARD_FOR = 2.5
_PARKED_INTERVAL = 5.0  # nobody announces that records are no longer parked
_LINGER = 30.0  # for the next waiter: connecting takes longer than publishing


@dataclass(frozen=True, slots=True)
class Account:
    """How far an outbox is published, and how many records of each topic were published, in this incarnation, up to and
    with batch number `batch`.
    """

    watermarks: Watermarks
    batch: int
    topics: Mapping[str, int]


@dataclass(eq=False, slots=True)
class Waiter:
    """Somebody who waits for a ticket. A queue carries the news into their own task."""

    ticket: Ticket
    has_committed: bool
    came_at: float = NEVER
    news: asyncio.Queue[TicketStatus | Exception] = field(default_factory=asyncio.Queue)
    is_new: bool = True
    is_parked: bool = False
    is_halted: bool = False
    is_answered: bool = False

    def tell(self, told: TicketStatus | Exception) -> None:
        self.is_new = False
        if isinstance(told, TicketStatus):
            self.has_committed |= told.state in (TicketState.WAITING, TicketState.PARKED)
            self.is_parked = told.state is TicketState.PARKED
            self.is_halted = told.state is TicketState.HALTED
        self.is_answered = isinstance(told, Exception) or told.is_final
        self.news.put_nowait(told)


@dataclass(eq=False, slots=True)
class Awaited:
    """An outbox that somebody wants to know of, and what is known. Times are the event loop's."""

    name: OutboxName
    report_at: float
    waiters: dict[Waiter, None] = field(default_factory=dict)
    """In the order in which they came."""
    followers: set[asyncio.Queue[Account | Exception]] = field(default_factory=set)
    watermarks: Watermarks | None = None
    may_count: bool | None = None
    looked_at: float = NEVER
    heard_at: float = NEVER
    greeted_at: float = NEVER
    asked_for_parked_at: float = NEVER
    left_at: float = NEVER

    def is_deserted(self, now: float) -> bool:
        return not self.waiters and not self.followers and now - self.left_at >= _LINGER

    @property
    def channel(self) -> str:
        assert self.watermarks is not None
        return f"outbox {'shards ' if self.watermarks.is_divided else ''}{self.watermarks.outbox_id}"

    def begin(self) -> None:
        """Begin on a new connection: believe nothing that was heard on another one."""
        self.watermarks = None
        self.looked_at = self.heard_at = self.greeted_at = self.asked_for_parked_at = NEVER
        for waiter in self.waiters:
            waiter.has_committed = False

    def distrust(self, transaction_ids: Collection[int]) -> None:
        """Note that Postgres did not confirm what is known: it has to be asked again, about everything."""
        assert self.watermarks is not None
        unknown: tuple[Snapshot | None, ...] = (None,) * len(self.watermarks.shards)
        self.watermarks = replace(self.watermarks, shards=unknown)
        self.looked_at = NEVER
        for waiter in self.waiters:
            waiter.has_committed &= waiter.ticket.transaction_id not in transaction_ids

    def is_to_look(self, now: float) -> bool:
        if now - self.looked_at >= GREETING_INTERVAL and any(map(self._is_too_new, self.unanswered())):
            return True
        quiet = now - self.heard_at < _HEARD_FOR and not self.followers
        return now - self.looked_at >= (_QUIET_LOOK_INTERVAL if quiet else LOOK_INTERVAL)

    def due(self, now: float) -> list[Waiter]:
        """Return the waiters for whom there may be an answer. Newcomers, and those of parked records, are due now and
        then. All are due when a doubt begins or ends.
        """
        greeting = now - self.greeted_at >= GREETING_INTERVAL
        of_parked = now - self.asked_for_parked_at >= _PARKED_INTERVAL
        due = [
            waiter
            for waiter in self.answerable()
            if waiter.is_halted != self.is_doubtful
            or (of_parked if waiter.is_parked else (greeting and waiter.is_new) or self._sees(waiter))
        ]
        if any(waiter.is_new for waiter in due):
            self.greeted_at = now
        if any(waiter.is_parked for waiter in due):
            self.asked_for_parked_at = now
        return due

    def has_new(self) -> bool:
        return any(waiter.is_new for waiter in self.waiters)

    def unanswered(self) -> list[Waiter]:
        return [waiter for waiter in self.waiters if not waiter.is_answered]

    def answerable(self) -> list[Waiter]:
        """Return the waiters that can be answered from what is known."""
        return [waiter for waiter in self.unanswered() if not self._is_too_new(waiter)]

    @property
    def is_doubtful(self) -> bool:
        return self.watermarks is not None and self.watermarks.doubt is not None

    def judge(
        self, waiters: Collection[Waiter], outcomes: Mapping[int, Outcome]
    ) -> dict[Waiter, TicketStatus | OutboxError]:
        """Return how far the waiters' transactions are, leaving aside parked records. `outcomes` holds what became of
        those not known to have committed.
        """
        assert self.watermarks is not None
        verdicts: dict[Waiter, TicketStatus | OutboxError] = {}
        for waiter in waiters:
            is_asked = not (waiter.has_committed or self.is_doubtful)
            outcome = outcomes[waiter.ticket.transaction_id] if is_asked else COMMITTED
            try:
                verdicts[waiter] = judge(waiter.ticket, outcome, self.watermarks)
            except OutboxError as error:
                verdicts[waiter] = error
        return verdicts

    def learn(self, found: Watermarks) -> None:
        """Note what is stored, which may be older than what was announced."""
        known = self.watermarks
        if known is not None and found.continues(known):
            for shard, watermark in enumerate(known.shards):
                if watermark is not None and shard < len(found.shards):
                    found = found.later(shard, watermark)
        self.watermarks = found

    def hear(self, payload: str, now: float) -> None:
        """Note a proved announcement. One that can't be understood is a reason to look. Others are ignored: anybody who
        may connect to the database can send them.
        """
        known = self.watermarks
        text, _, proof = payload.rpartition(" ")
        if known is None or not known.proves(text, proof):
            return
        self.heard_at = now
        try:
            shard, *layout, incarnation, snapshot = text.split(" ")
            if int(incarnation) != known.incarnation or not shard.isdecimal() or layout != known.layout_announced:
                raise ValueError(payload)
            self.watermarks = known.later(int(shard), Snapshot.parse(snapshot))
            if known.doubt is not None:
                self.looked_at = NEVER
        except (ValueError, IndexError):
            self.looked_at = NEVER

    def fail(self, error: Exception) -> None:
        for waiter in self.unanswered():
            waiter.tell(error)
        for news in self.followers:
            news.put_nowait(error)

    def _is_too_new(self, waiter: Waiter) -> bool:
        """Whether what is known speaks against the waiter's ticket, and is older than the waiter."""
        known, ticket = self.watermarks, waiter.ticket
        return known is None or (
            waiter.came_at > self.looked_at
            and (
                known.delivery == "at_least_once"
                or (ticket.outbox_id, ticket.incarnation) != (known.outbox_id, known.incarnation)
            )
        )

    def _sees(self, waiter: Waiter) -> bool:
        assert self.watermarks is not None
        try:
            return self.watermarks.see(waiter.ticket)
        except OutboxError:  # the answer will say it
            return True
