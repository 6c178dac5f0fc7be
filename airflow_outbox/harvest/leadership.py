"""A leadership: a member leads one shard, in terms of one view each, and reports what happens.

    standing by ── Lead ──► take over under a new view ──► a term ──┐
         ▲                            ▲                             ├─ asked to stand by: finish what is in flight, let
         go │                            └── failure: wait, a new view ┤ └────────── StandBy, or fenced by a successor
         ─────────────┘

A failure does not end the leadership: a new view makes its outcome irrelevant. Nothing is ever assumed to have failed.
But a leader that can't reach Postgres for the heartbeat timeout resigns: it leaves the group, so that another member
leads. It comes back when it has reached Postgres again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol
from uuid import UUID, uuid4

from airflow_outbox.errors import (
    ConfigurationError,
    FencedError,
    HistoryError,
    KafkaError,
    LayoutChangedError,
    OutboxError,
    PostgresError,
    PostgresUnreachableError,
    RecordsRefusedError,
)
from airflow_outbox.harvest.absence import Absence
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.layout_change import LayoutChange, Reshard
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.modes import Modes
from airflow_outbox.harvest.ports import Election, Events, Table
from airflow_outbox.harvest.protocol.absences import Absences, Absent
from airflow_outbox.harvest.protocol.election import Change, Lead, StandBy, Standing
from airflow_outbox.harvest.protocol.handover import Aside, StandIn, stand_in
from airflow_outbox.harvest.term import Term
from airflow_outbox.values.fence import AttachHow, Fence, OperatorRequest, ShardLook

SHARD = 0
_SHORTEST_DELAY = 0.1
_DELAY_AFTER_REFUSAL = 0.01
_LONGEST_DELAY = 5.0
_DELAY_WHILE_HELD = 1.0
"""Seconds: a cluster that is away is back at any time, and this member still leads."""
_RETURN_INTERVAL = 0.5


class Attach(Protocol):
    """Lets an owed cluster count again; the caller leads, under one of the views `after`. Then the fence names the
    `successor`, or `view` if the cluster can't be attached.

    Raises ConfigurationError, HistoryError and KafkaError, after which the fence names `view`; FencedError,
    PostgresError.
    """

    async def __call__(
        self, cluster: str, *, how: AttachHow | None = None, view: UUID, after: Collection[UUID], successor: UUID
    ) -> None: ...


class Leadership:
    """Leads a shard when the election says so. A bug, as opposed to an OutboxError, is the exception of `bug`.

    `layout_changed`: the outbox has, or gets, another number of shards: the member has to find out which it may lead.

    The class is large because it holds one protocol: what ends a term, and what follows it. The election's words, an
    operator's requests and the outcome of a term all decide by the same facts: the views, standing in, stepping aside.
    """

    def __init__(
        self,
        *,
        table: Table,
        modes: Modes,
        election: Election,
        absence: Absence,
        limits: Limits,
        events: Events,
        measures: Measures,
        layout_changed: LayoutChange,
        shard: int = SHARD,
        is_alone: bool = True,
        reshard: Reshard | None = None,
        attach: Attach | None = None,
        detach_after: float | None = None,
        new_view: Callable[[], UUID] = uuid4,
    ) -> None:
        """`is_alone`: the outbox has no other shard. `reshard` brings about another number of shards, and `attach`
        another membership. A backup that can't be reached is detached after `detach_after` seconds (None: never).
        """
        self.shard = shard
        self.term: Term | None = None
        self.bug: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._table = table
        self._modes = modes
        self._election = election
        self._absence = absence
        self._limits = limits
        self._events = events
        self._measures = measures
        self._layout_changed = layout_changed
        self._is_alone = is_alone
        self._reshard = reshard
        self._attach = attach
        self._absences = Absences(detach_after)
        self._backups: Collection[str] = ()
        self._new_view = new_view
        self._aside: Aside | None = None  # an operator wants another member to lead
        self._stands_in = False  # it leads without the group's word
        self._leading: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None  # the member is told to end, and leads no more
        self._views: list[UUID] = []  # of this leadership, since its last take-over that succeeded
        self._published = 0  # records of this shard; other shards of the process may do better
        self._reached_at = 0.0  # when Postgres was last known to answer, on the loop's clock

    async def follow(self, change: Change | StandIn) -> None:
        """Do as the election says, or stand in: lead until the group has elected."""
        if self._ending is not None:  # another take-over would fence the records that it still publishes
            await asyncio.wait({self._ending})
            self._election.released(self.shard)
            return
        if isinstance(change, StandBy):
            self._events("stood_by", shard=self.shard, reason=change.reason)
            await self.stand_by(self._limits.heartbeat_timeout)
            self._election.released(self.shard)
            return
        if isinstance(change, StandIn):
            self._events("stands_in", shard=self.shard)
        else:
            self._events("elected", shard=self.shard)
        if self._stands_in and isinstance(change, Lead) and self._leading is not None and not self._leading.done():
            self._stands_in = False  # it leads already, and goes on
            return
        self._measures.elected(self.shard)
        await self.stand_by(0)
        self._aside, self._stands_in = None, isinstance(change, StandIn)
        self._leading = asyncio.create_task(self._lead(() if isinstance(change, Lead) else (change.after,)))
        self._leading.add_done_callback(self._notice_bug)

    def due(self, look: ShardLook) -> Lead | StandIn | None:
        """Return what a handover asks of this member now, if anything; `look` is what the shard shows to all."""
        if self._absence.is_on or self._ending is not None or (self._leading is not None and not self._leading.done()):
            return None
        is_owner = self._election.standing(self.shard) is Standing.LEADER
        if self._aside is None:
            return None if is_owner else stand_in(look)
        now = asyncio.get_running_loop().time()
        if not self._aside.is_over(look, now, patience=self._limits.session_timeout):
            return None
        self._aside = None
        return Lead() if is_owner else None

    async def stand_by(self, grace: float) -> None:
        """End the leadership: let the term finish for `grace` seconds, then abandon it."""
        leading, self._leading = self._leading, None
        if leading is None:
            return
        if self.term is not None:
            self.term.stop()
            await asyncio.wait({leading}, timeout=grace)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await self._leave()

    async def stop(self, grace: float) -> None:
        """Finish the records in flight, for at most `grace` seconds, and lead no more, whoever the group elects."""
        self._ending = asyncio.create_task(self.stand_by(grace))
        await self._ending
        self._election.released(self.shard)

    async def close(self) -> None:
        """End the leadership at once, and the connections."""
        await self.stand_by(0)
        self._election.released(self.shard)  # in another layout, the group would wait until a time-out
        await self._table.close()

    async def _lead(self, after: Collection[UUID]) -> None:
        """Lead until told otherwise. `after`, unless empty, holds the only views to follow."""
        loop, delay = asyncio.get_running_loop(), _SHORTEST_DELAY
        self._reached_at = loop.time()
        self._views = list(after)
        self._modes.begin_leadership()
        while True:
            view = self._new_view()
            published_before = self._published
            try:
                request = await self._run_term(view)
                if request.attaches and request.attach is not None and self._attach is not None and self._is_leading:
                    await self._attach_cluster(self._attach, request.attach, request.attach_how)
                    continue
                if request.shards is not None and self._reshard is not None:
                    if self._is_leading:
                        await self._change_layout(self._reshard, request.shards)
                elif request.handover:
                    await self._leave()
                    if self._is_alone:
                        self._hand_over(view)
                    else:
                        self._step_aside(view)
                elif self._is_leading:  # what the term has ended for was withdrawn meanwhile
                    continue
                return
            except LayoutChangedError:
                self._layout_changed.set()
                return
            except FencedError:
                if self._stands_in and self._views != [view]:
                    self._events("stood_by", shard=self.shard, reason="another member leads it already")
                    self._views = []
                    return
                self._views = []
                self._measures.fencings += 1
                self._events("fenced", shard=self.shard, view=str(view))
                self._election.fenced(self.shard)
                self._election.released(self.shard)
                return
            except OutboxError as error:
                view = self._views[-1] if self._views else view  # attaching and resharding have views of their own
                if asyncio.current_task() is not self._leading:  # asked to stand by: another view would be a duel
                    if not await self._is_followed(view):
                        self._events("error", error=str(error), retry_in=None)
                    return
                # A refusal narrows the next try: few terms are needed, and others should not wait long for them.
                if isinstance(error, RecordsRefusedError):
                    delay = _DELAY_AFTER_REFUSAL
                elif self._published > published_before:
                    delay = _SHORTEST_DELAY
                if isinstance(error, KafkaError) and error.cluster is not None:
                    delay = min(delay, _DELAY_WHILE_HELD)
                self._events("error", error=str(error), retry_in=delay)
                if not isinstance(error, PostgresUnreachableError):
                    self._reached_at = loop.time()
                    with contextlib.suppress(OutboxError):
                        if isinstance(error, HistoryError):
                            await self._table.halt(view, error.difference)
                        if not isinstance(error, RecordsRefusedError):  # those are parked within moments
                            await self._table.note_error(view, str(error))
                    if isinstance(error, KafkaError) and error.cluster in self._backups:
                        match self._absences.failed(str(error.cluster), loop.time()):
                            case Absent.RESIGN:
                                self._hand_over(view, f"{error}: another member may reach it")
                                return
                            case Absent.DETACH:
                                await self._detach(view, str(error.cluster), str(error))
                    if self._stands_in and not isinstance(error, RecordsRefusedError):  # its owner may fare better
                        self._stands_in = False  # it does not go on, even if the group elects it now
                        await self._leave()
                        return
                elif loop.time() - self._reached_at > self._limits.heartbeat_timeout:
                    self._resign(str(error))
                    return
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _run_term(self, view: UUID) -> OperatorRequest:
        """Lead under one view until asked to stop. Return what operators have asked for that others have to see to."""
        fence = await self._take_over(view)
        self._events("view", shard=self.shard, view=str(view))
        self._backups = fence.backups
        if self._is_asked_for_change(fence.request):
            return fence.request
        try:
            async with aclosing(self._modes.terms(view, fence, self._measures)) as terms:
                async for term in terms:
                    self.term = term
                    if not term.prepares:
                        self._absences.reached_all()
                        seconds = self._measures.took_over(self.shard)
                        self._events("took_over", shard=self.shard, view=str(view), seconds=seconds)
                    try:
                        await term.run()
                    finally:
                        self._published += term.published
                    request = replace(term.request, attaches=term.attaches)
                    if request.handover or self._is_asked_for_change(request) or not self._is_leading:
                        return request
            return OperatorRequest()
        finally:
            self.term = None
            self._measures.term_ended(self.shard)
            self._reached_at = asyncio.get_running_loop().time()

    def _is_asked_for_change(self, request: OperatorRequest) -> bool:
        """Whether operators ask for another layout, or a cluster is to count: no term can bring that about."""
        reshards = request.shards is not None and self._reshard is not None
        return reshards or (request.attaches and request.attach is not None and self._attach is not None)

    @property
    def _is_leading(self) -> bool:
        return asyncio.current_task() is self._leading

    async def _attach_cluster(self, attach: Attach, cluster: str, how: AttachHow | None) -> None:
        view, successor, after = self._new_view(), self._new_view(), self._views
        self._views = [*after, view, successor]
        try:
            await attach(cluster, how=how, view=view, after=after, successor=successor)
        except (ConfigurationError, HistoryError, KafkaError):  # it was withdrawn
            self._views = [view]
            raise
        self._views = [view, successor]

    async def _detach(self, view: UUID, cluster: str, reason: str) -> None:
        """Go on without a backup, from the next view on. Raises nothing: the next term tries again."""
        successor = self._new_view()
        self._views = [*self._views, successor]
        with contextlib.suppress(OutboxError):
            await self._table.detach(view, successor, [cluster], reason)
            self._views = [successor]
            self._events("detached", cluster=cluster, reason=reason)

    async def _change_layout(self, reshard: Reshard, shards: int) -> None:
        view, after = self._new_view(), self._views
        self._views = [*after, view]
        self._layout_changed.written(await reshard(shards, view=view, after=after))

    async def _take_over(self, view: UUID) -> Fence:
        """Write the view into the fence row: the first time in this leadership after any view, later only after one of
        this leadership, so that a successor is never fenced in turn.
        """
        after = self._views
        self._views = [*after, view] if after else []
        fence = await self._table.take_over(view, after=after)
        self._views = [view]
        self._reached_at = asyncio.get_running_loop().time()
        return fence

    async def _is_followed(self, view: UUID) -> bool:
        """Whether a successor has taken over already. That fails all work under way."""
        try:
            await self._table.require_fence(view)
        except FencedError:
            return True
        except OutboxError:
            pass
        return False

    def _resign(self, reason: str) -> None:
        """Let others lead until this member reaches Postgres again."""

        async def reached() -> None:
            await self._table.is_empty()

        self._go(reason, lambda: self._succeeds(reached))

    def _hand_over(self, view: UUID, reason: str = "a handover was requested") -> None:
        """Let another member lead. Come back when it does, or after a while if there is none."""

        async def followed() -> None:
            with contextlib.suppress(FencedError):
                await self._table.require_fence(view)
                raise PostgresError("not followed yet")

        async def followed_in_time() -> None:
            async with asyncio.timeout(self._limits.session_timeout):
                await self._succeeds(followed)

        self._go(reason, followed_in_time)

    def _step_aside(self, view: UUID) -> None:
        """Let another member lead this shard alone. The group is not told."""
        self._aside = Aside(view, asyncio.get_running_loop().time())
        self._events("handed_over", shard=self.shard)
        self._election.released(self.shard)

    def _go(self, reason: str, coming_back: Callable[[], Awaitable[None]]) -> None:
        self._absence.begin(reason, coming_back)
        self._election.released(self.shard)

    @staticmethod
    async def _succeeds(attempt: Callable[[], Awaitable[None]]) -> None:
        """Wait until an attempt raises no OutboxError."""
        while True:
            await asyncio.sleep(_RETURN_INTERVAL)
            with contextlib.suppress(OutboxError):
                await attempt()
                return

    async def _leave(self) -> None:
        """Let operators see that nobody leads any more, if the last take-over is known to have succeeded."""
        views, self._views = self._views, []
        if len(views) == 1:
            with contextlib.suppress(OutboxError):
                await self._table.leave(views[0])

    def _notice_bug(self, leading: asyncio.Task[None]) -> None:
        if not leading.cancelled() and (error := leading.exception()) is not None and not self.bug.done():
            self.bug.set_exception(error)
