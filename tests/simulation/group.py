"""The port `Election` over a simulated group coordinator: the real candidate over simulated traffic. One partition, one
shard.

The coordinator gives the role to a member drawn at random whenever it rebalances. The one that has it is asked to let
go first, and has the barrier's time for that. A member that was not heard of for the session time-out is thrown out; it
learns of that when it is heard of again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import copy_context
from typing import Any

from simulation.loop import ELSEWHERE
from simulation.network import Link, Network

from airflow_outbox.harvest.protocol.election import Candidate, Change, Lead, Standing

HEARTBEAT_INTERVAL = 0.3
_CHECK_INTERVAL = 0.5


class Group:
    """The coordinator's side. `owner` is to have the role, `holder` has it, as far as the coordinator knows."""

    def __init__(self, network: Network, *, barrier: float, session_timeout: float) -> None:
        self.network = network
        self.members: list[SimulatedElection] = []
        self.owner: SimulatedElection | None = None
        self._holder: SimulatedElection | None = None
        self._barrier = barrier
        self._session_timeout = session_timeout
        self._heard: dict[SimulatedElection, float] = {}
        self._revocation = 0
        self._checking = False

    def join(self, member: SimulatedElection) -> None:
        if member not in self.members:
            self.members.append(member)
            self._heard[member] = _now()
            if not self._checking:
                self._checking = True
                asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._check, context=ELSEWHERE)
            if self.owner is None:
                self.rebalance()

    def leave(self, member: SimulatedElection) -> None:
        if member in self.members:
            self.members.remove(member)
            if self.owner is member:
                self.rebalance()
            if self._holder is member:
                self._assign()

    def hear(self, member: SimulatedElection, *, is_owner: bool) -> None:
        """A member is alive, and takes itself for the owner, or not; it is told again what it may have missed."""
        if member not in self.members:
            member.tell(member.lost)
            return
        self._heard[member] = _now()
        rightful = self._holder is member and self.owner is member
        if is_owner and not rightful:
            member.tell(member.revoke)
        elif rightful and not is_owner:
            member.tell(member.assign)

    def rebalance(self) -> None:
        """Give the role to a member drawn at random, or to nobody when there is none."""
        owner = self.network.random.choice(self.members) if self.members else None
        if owner is self.owner:
            return
        self.owner = owner
        if self._holder is None:
            self._assign()
        else:
            self._holder.tell(self._holder.revoke)
            self._revocation += 1
            asyncio.get_running_loop().call_later(
                self._barrier, self._enough, self._holder, self._revocation, context=ELSEWHERE
            )

    def released(self, member: SimulatedElection) -> None:
        if self._holder is member:
            self._assign()

    def _enough(self, holder: SimulatedElection, revocation: int) -> None:
        if self._holder is holder and self._revocation == revocation:
            self._assign()

    def _assign(self) -> None:
        self._revocation += 1
        self._holder = self.owner
        if self.owner is not None:
            self.owner.tell(self.owner.assign)

    def _check(self) -> None:
        for member in list(self.members):
            if _now() - self._heard[member] > self._session_timeout:
                self.leave(member)
        self._checking = bool(self.members)
        if self._checking:
            asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._check, context=ELSEWHERE)


class SimulatedElection:
    """One member of the group."""

    def __init__(
        self,
        group: Group,
        link: Link,
        heartbeat_timeout: float,
        *,
        shard: int = 0,
        changes: asyncio.Queue[tuple[int, Change] | None] | None = None,
    ) -> None:
        """`changes` of a `shard` among several go into one queue."""
        self._group = group
        self._shard = shard
        self._link = link
        self._context = copy_context()  # the process' own: what comes from the coordinator runs when that does
        self._candidate = Candidate(heartbeat_timeout)
        self._changes: asyncio.Queue[tuple[int, Change] | None] = changes or asyncio.Queue()
        self._released = asyncio.Event()
        self._released.set()
        self._timeout = heartbeat_timeout
        self._letting_go = False
        self._is_in = self._is_closed = False
        self._next_arrival = 0.0
        self._polling: asyncio.Task[None] | None = None

    def standing(self, shard: int) -> Standing:
        return self._candidate.standing

    async def changes(self) -> AsyncIterator[tuple[int, Change]]:
        if self._is_closed:
            return
        self.begin()
        while (change := await self._changes.get()) is not None:
            yield change

    def begin(self) -> None:
        """Join."""
        self._polling = asyncio.create_task(self._poll())
        self.rejoin()

    def released(self, shard: int) -> None:
        self._released.set()
        if self._letting_go:
            self._letting_go = False
            self._send(self._group.released)

    def fenced(self, shard: int) -> None:
        self._candidate.fenced(_now())

    def resign(self, reason: str) -> None:
        self._is_in = False
        self._send(self._group.leave)
        self._change(self._candidate.revoked(reason))

    def rejoin(self) -> None:
        if not self._is_closed:
            self._is_in = True
            self._send(self._group.join)

    async def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self._released.wait()
        self._is_in = False
        if self._polling is not None:
            self._polling.cancel()
        self._send(self._group.leave)
        self._changes.put_nowait(None)

    # The coordinator's answers

    def tell(self, what: Callable[[], None]) -> None:
        """Have something arrive at the member, some time soon, after all that was sent to it before."""
        if not self._link.cut:
            arrival = max(self._next_arrival, _now() + self._link.network.delay())
            self._next_arrival = arrival
            asyncio.get_running_loop().call_at(arrival, what, context=self._context)

    def revoke(self) -> None:
        self._letting_go = True
        self._change(self._candidate.revoked())
        if self._released.is_set():
            self.released(0)

    def assign(self) -> None:
        if self._is_in:
            self._change(self._candidate.assigned(_now()))

    def lost(self) -> None:
        if self._is_in:
            self._change(self._candidate.revoked("thrown out of the group"))
            self.rejoin()

    # Its own traffic

    async def _poll(self) -> None:
        while True:
            sent_at, is_owner = _now(), self._candidate.is_owner
            self._send(self._heard, sent_at, is_owner)
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            self._change(self._candidate.passed(_now()))

    def _heard(self, _: SimulatedElection, sent_at: float, was_owner: bool) -> None:
        if self._is_in:
            self._group.hear(self, is_owner=was_owner)
        if was_owner:
            self.tell(lambda: self._read_back(sent_at))

    def _read_back(self, sent_at: float) -> None:
        self._candidate.heartbeat_read(sent_at)
        asked_at = _now()
        if self._candidate.wants_confirmation(asked_at):
            self._send(self._confirm, asked_at)

    def _confirm(self, _: SimulatedElection, asked_at: float) -> None:
        if self._group.owner is self:
            self.tell(lambda: self._change(self._candidate.confirmed(asked_at, _now())))

    def _send(self, arrive: Callable[..., None], *values: Any) -> None:
        network = self._link.network
        if not self._link.cut and not network.unlucky():
            asyncio.get_running_loop().call_later(network.delay(), arrive, self, *values, context=ELSEWHERE)

    def _change(self, change: Change | None) -> None:
        if change is not None:
            if isinstance(change, Lead):
                self._released.clear()
            self._changes.put_nowait((self._shard, change))


class SimulatedRoles:
    """One member's part in several elections, a group for each shard, which know nothing of each other."""

    def __init__(self, groups: Sequence[Group], link: Link, heartbeat_timeout: float) -> None:
        self._changes: asyncio.Queue[tuple[int, Change] | None] = asyncio.Queue()
        self._roles = [
            SimulatedElection(group, link, heartbeat_timeout, shard=shard, changes=self._changes)
            for shard, group in enumerate(groups)
        ]
        self._is_closed = False

    def standing(self, shard: int) -> Standing:
        return self._roles[shard].standing(shard)

    async def changes(self) -> AsyncIterator[tuple[int, Change]]:
        if self._is_closed:
            return
        for role in self._roles:
            role.begin()
        while (change := await self._changes.get()) is not None:
            yield change

    def released(self, shard: int) -> None:
        self._roles[shard].released(shard)

    def fenced(self, shard: int) -> None:
        self._roles[shard].fenced(shard)

    def resign(self, reason: str) -> None:
        for role in self._roles:
            role.resign(reason)

    def rejoin(self) -> None:
        for role in self._roles:
            role.rejoin()

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*(role.close() for role in self._roles))


def _now() -> float:
    return asyncio.get_running_loop().time()
