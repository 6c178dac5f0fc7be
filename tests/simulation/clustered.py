"""Histories of an outbox that is published to several clusters, each of which may be down for a while.

Besides what befalls any outbox, a leader is struck between any two of its steps on different clusters. In the end all
clusters have to hold the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from uuid import UUID

from simulation.ambush import BETWEEN_CLUSTERS, Moment, Strike
from simulation.checker import differences_of
from simulation.histories import History
from simulation.kafka import LEDGER, Broker, KafkaTransaction
from simulation.late_requests import LateRequests
from simulation.poisoned import Poisoned
from simulation.postgres import OUTBOX_ID
from simulation.promotions import promoted
from simulation.sharded import ManyShards, Resharded
from simulation.spanning import Spanning
from simulation.verdicts import Verdict, verdict_of

from airflow_outbox.harvest.protocol.ledger import HEAD
from airflow_outbox.values.fence import AttachHow

_LONGEST_DOWN = 12.0  # seconds
_LONGEST_AWAY = 20.0
_SHARE_OF_AMBUSHES = 0.5
_OF_ITS_TIME = (Verdict.PURGED_UNPUBLISHED, Verdict.FALSE_WATERMARK)


class Clustered(History):
    """Clusters go away, and come back with all that they had."""

    _lost: Broker | None = None
    """A cluster that does not come back."""

    async def _disturb(self) -> None:
        failing = asyncio.create_task(self._fail_now_and_then()) if self.world.random.random() < 0.5 else None
        await super()._disturb()
        if failing is not None:
            failing.cancel()
        for broker in self.world.brokers.values():
            broker.is_up = broker is not self._lost

    async def _fail_now_and_then(self) -> None:
        random = self.world.random
        while True:
            await asyncio.sleep(6 * random.random())
            broker = random.choice([*self.world.brokers.values()])
            broker.is_up = False
            await asyncio.sleep(_LONGEST_DOWN * random.random() ** 2)
            broker.is_up = broker is not self._lost

    def _moments(self, strike: Strike) -> Sequence[Moment]:
        between = BETWEEN_CLUSTERS.get(strike)
        return between if between and self.world.random.random() < _SHARE_OF_AMBUSHES else super()._moments(strike)

    def judge(self, *, drained: bool) -> list[str]:
        return [*super().judge(drained=drained), *(self._divergence() if drained else ())]

    def _divergence(self) -> Iterator[str]:
        accepted = {self.world.brokers[name] for name in self.world.database.were_accepted}
        primary, *backups = [broker for broker in self.world.counting if broker not in accepted] or [self.world.broker]
        for backup in backups:
            yield from differences_of(primary, backup, of_shards=self._is_sharded)


class Promoted(Clustered):
    """The primary is lost, or a backup. An operator goes on without it. It may come back, and then nobody asks it."""

    async def _disturb(self) -> None:
        losing = asyncio.create_task(self._lose_one())
        await super()._disturb()
        await losing

    async def _lose_one(self) -> None:
        random, world = self.world.random, self.world
        await asyncio.sleep(12 * random.random())
        names = [*world.brokers]
        lost = names[0] if random.random() < 0.7 else random.choice(names[1:])
        self._lost = world.brokers[lost]
        self._lost.is_up = False
        await asyncio.sleep(6 * random.random() ** 2)
        while not world.database.up:
            await asyncio.sleep(0.1)
        left = [name for name in names if name != lost]
        random.shuffle(left)
        primary = left[0] if lost == names[0] else names[0]
        world.server.write_membership(primary, [name for name in left if name != primary])
        self.steps.append(f"{asyncio.get_running_loop().time():.2f} {primary} goes on without {lost}")
        if random.random() < 0.5:
            await asyncio.sleep(4 * random.random())
            self._lost.is_up, self._lost = True, None


class Attached(Clustered):
    """Clusters are detached, or lost and another one promoted; and attached again, now and then."""

    @property
    def _detached(self) -> set[Broker]:
        return {self.world.brokers[name] for name in self.world.database.were_owed}

    def _witnesses(self) -> Sequence[Broker]:
        return [broker for broker in self.world.counting if broker not in self._detached]

    def judge(self, *, drained: bool) -> list[str]:
        """No cluster has lost anything, and all that they are owed is kept."""
        refusals = self.world.database.refusals
        return super().judge(drained=drained) + [f"false alarm: {why}" for why in refusals if "kept" in why]

    def _complaints(self, broker: Broker, *, drained: bool) -> list[str]:
        """Records that were purged or claimed while a cluster did not count are not judged by that one."""
        found = super()._complaints(broker, drained=drained)
        if broker not in self._detached:
            return found
        return [complaint for complaint in found if verdict_of(complaint) not in _OF_ITS_TIME]

    async def _disturb(self) -> None:
        changing = asyncio.create_task(self._change_now_and_then())
        await super()._disturb()
        changing.cancel()

    async def _change_now_and_then(self) -> None:
        random, world = self.world.random, self.world
        while True:
            await asyncio.sleep(5 * random.random())
            row = world.database.state.fence
            if not world.database.up:
                continue
            if row.owed and random.random() < 0.7:
                self.ask_to_attach()
            elif row.backups and random.random() < 0.5:
                lost = random.choice([row.primary, *row.backups])
                left = [cluster for cluster in (row.primary, *row.backups) if cluster != lost]
                world.server.write_membership(left[0], left[1:])
            elif row.backups and random.random() < 0.3:
                counting = [row.primary, *row.backups]
                random.shuffle(counting)
                world.server.write_membership(counting[0], counting[1:])

    def ask_to_attach(self, *, how: AttachHow | None = None) -> None:
        """An operator asks for a cluster that is owed records; perhaps with what it has alone."""
        row, random = self.world.database.state.fence, self.world.random
        if row.owed and row.attach is None and self.world.database.up:
            if self.world.database.refusals and random.random() < 0.7:
                how = "accept"
            self.world.server.set_fence(replace(row, attach=random.choice([*row.owed]), attach_how=how))

    def has_ended(self) -> bool:
        return self.world.database.state.fence.attach is None and super().has_ended()


class Detached(Attached):
    """Only the primary is required: leaders detach backups that are away, and operators attach them again."""

    async def _disturb(self) -> None:
        away = asyncio.create_task(self._be_away())
        await super()._disturb()
        away.cancel()
        self._lost = None
        for broker in self.world.brokers.values():
            broker.is_up = True

    async def _be_away(self) -> None:
        """A backup is away for so long that leaders go on without it."""
        random = self.world.random
        await asyncio.sleep(3 * random.random())
        *_, name = self.world.brokers
        self._lost = self.world.brokers[name]
        self._lost.is_up = False
        while not self.world.database.state.fence.owed:
            await asyncio.sleep(0.5)
        await asyncio.sleep(_LONGEST_AWAY * random.random() ** 2)
        self._lost = None
        self.world.brokers[name].is_up = True

    async def _change_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(5 * self.world.random.random())
            if self.world.database.up:
                self.ask_to_attach()

    def has_ended(self) -> bool:
        if self.world.database.state.fence.owed:
            self.ask_to_attach()
            return False
        return super().has_ended()


class Forsaken(Attached):
    """The backup is detached when the primary is lost, and promoted all the same. Then the old primary comes back."""

    async def _disturb(self) -> None:
        losing = asyncio.create_task(self._lose_the_primary())
        await super()._disturb()
        await losing

    async def _change_now_and_then(self) -> None:
        """Nothing else changes."""

    async def _lose_the_primary(self) -> None:
        random, world = self.world.random, self.world
        primary, backup = world.brokers
        await asyncio.sleep(3 * random.random())
        await self._while_up(lambda: world.server.write_membership(primary, []))
        await asyncio.sleep(10 * random.random())
        self._lost = world.brokers[primary]
        self._lost.is_up = False
        await asyncio.sleep(3 * random.random())
        await promoted(world, self.design, backup)
        self.steps.append(f"{asyncio.get_running_loop().time():.2f} {backup} goes on alone")
        await self._while_up(lambda: self._pause(random.random() < 0.5))
        await asyncio.sleep(6 * random.random() ** 2)
        self._lost.is_up, self._lost = True, None
        await self._while_up(lambda: self.ask_to_attach(how="accept"))
        await asyncio.sleep(6 * random.random())
        await self._while_up(lambda: self._pause(False))

    def _pause(self, paused: bool) -> None:
        """While it is paused, what only the old primary has is published nowhere."""
        row = self.world.database.state.fence
        self.world.server.set_fence(replace(row, request=replace(row.request, paused=paused)))

    async def _while_up(self, act: Callable[[], None]) -> None:
        while not self.world.database.up:
            await asyncio.sleep(0.1)
        act()

    def has_ended(self) -> bool:
        """In the end both count."""
        if self.world.database.state.fence.owed:
            self.ask_to_attach()
            return False
        return super().has_ended()


class Exchanged(Attached):
    """The backup is detached, and comes back with another outbox's ledger: it must not count again."""

    _exchanged: Sequence[KafkaTransaction | None] = ()  # of the ledger's heads

    async def _disturb(self) -> None:
        await super()._disturb()
        _, name = self.world.brokers
        if name not in self.world.database.state.fence.owed:  # the trouble was over too soon
            return
        ledger = self.world.brokers[name].partition(LEDGER)
        heads = [number for number, record in enumerate(ledger.records) if record.key == HEAD]
        self._exchanged = [ledger.records[number].transaction for number in heads]
        for number in heads:  # all of them, since the last one may belong to an aborted transaction
            head = ledger.records[number]
            other = head.value.replace(str(OUTBOX_ID), str(UUID(int=9)))
            ledger.records[number] = replace(head, value=other)
        self.ask_to_attach()

    async def _change_now_and_then(self) -> None:
        """It counts for a while, and is detached for good."""
        world = self.world
        primary, name = world.brokers
        while not any(world.brokers[name].partition(LEDGER).committed()):
            await asyncio.sleep(0.5)
        await asyncio.sleep(6 * world.random.random())
        while not world.database.up:
            await asyncio.sleep(0.1)
        world.server.write_membership(primary, [])

    def judge(self, *, drained: bool) -> list[str]:
        """A ledger whose heads were all aborted is empty, whoever they name."""
        is_foreign = any(transaction is not None and transaction.committed for transaction in self._exchanged)
        others = [cluster for cluster in self.world.counting if cluster.is_backup and is_foreign]
        return super().judge(drained=drained) + [f"foreign: {cluster} counts" for cluster in others]


class AttachedShards(Attached, ManyShards):
    """And there are several shards: a cluster counts again when it has what it missed of all of them."""


class DetachedShards(Detached, Resharded):
    """And somebody asks for other numbers of shards, also while a cluster is away."""


class ClusteredLate(Clustered, LateRequests):
    """And requests come late."""


class ClusteredSpanning(Clustered, Spanning):
    """And there is a backlog of long transactions."""


class ClusteredPoisoned(Clustered, Poisoned):
    """And a backup refuses records that the primary takes."""

    @property
    def _poisoned(self) -> Broker:
        return [*self.world.brokers.values()][-1]
