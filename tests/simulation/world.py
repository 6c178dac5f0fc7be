"""The simulated world: one database, one Kafka, one consumer group, and the members that share them.

A member is a process: it can be stopped and continued, killed, and cut off from either server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from random import Random
from uuid import UUID

from simulation.database_state import FenceRow
from simulation.group import Group, SimulatedElection, SimulatedRoles
from simulation.kafka import Broker
from simulation.log import SimulatedLog, SimulatedTransactionalLog, kafka_link
from simulation.loop import SimulatedProcess
from simulation.network import Answer, Link, Network
from simulation.postgres import Database
from simulation.statements import Server
from simulation.table import SimulatedTable, postgres_link

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.attaching import Attaching
from airflow_outbox.harvest.config import DeliveryMode, Limits
from airflow_outbox.harvest.harvester import Harvester, Shard
from airflow_outbox.harvest.kafka.fencing import StuckIds
from airflow_outbox.harvest.leadership import Leadership
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.member import Member as EngineMember
from airflow_outbox.harvest.modes import Modes
from airflow_outbox.harvest.ports import Events, Log, TransactionalLog, TransactionalLogFactory
from airflow_outbox.harvest.protocol.election import Standing
from airflow_outbox.harvest.resharding import Resharding
from airflow_outbox.values.fence import PRIMARY, LedgerRow
from airflow_outbox.values.layout import Layout

LIMITS = Limits(
    max_in_flight_records=40,
    mark_records=15,
    batch_records=12,
    poll_interval=0.05,
    heartbeat_timeout=1,
    session_timeout=3,
)
TRANSACTION_TIMEOUT = 8.0
_LAYOUT_INTERVAL = 2.0


class World:
    """Shared by all members. `trouble` is the probability that a message is lost, in any way."""

    def __init__(self, seed: int, *, trouble: float = 0.0, latency: float = 0.005, clusters: int = 1) -> None:
        self.random = Random(seed)
        ticks = count()
        self.tick: Callable[[], int] = lambda: next(ticks)
        self.network = Network(self.random, trouble, latency)
        self.database = Database(self.tick)
        self.server = Server(self.database, self.random, slowness=latency)
        self.brokers = {
            PRIMARY if number == 0 else f"backup {number}": Broker(
                self.random, self.tick, transaction_timeout=TRANSACTION_TIMEOUT
            )
            for number in range(clusters)
        }
        for name, broker in self.brokers.items():
            broker.is_backup = name != PRIMARY
        if clusters > 1:
            self.server.set_fence(FenceRow(backups={name: LedgerRow() for name in self.brokers if name != PRIMARY}))
        self.group = Group(self.network, barrier=LIMITS.heartbeat_timeout, session_timeout=LIMITS.session_timeout)
        self._groups: dict[int, list[Group]] = {}
        self.members: list[Member] = []
        self.watch: Callable[[Member, str, str], float] | None = None
        """Told the name of every question of every member, and whether it is `asked` or `answered`; how many seconds it
        is to travel longer."""

    @property
    def broker(self) -> Broker:
        """The first cluster."""
        return self.brokers[PRIMARY]

    @property
    def counting(self) -> Sequence[Broker]:
        """The clusters that count now, the primary first."""
        row = self.database.state.fence
        return [self.brokers[cluster] for cluster in (row.primary, *row.backups)]

    def groups(self, layout: Layout) -> Sequence[Group]:
        """The groups of a layout, one for each shard. Members in another one are in others."""
        if layout.number not in self._groups:
            times = {"barrier": LIMITS.heartbeat_timeout, "session_timeout": LIMITS.session_timeout}
            self._groups[layout.number] = [Group(self.network, **times) for _ in range(layout.shards)]
        return self._groups[layout.number]

    def beside(self, database: Database) -> World:
        """Another database behind the same Kafka, with members of its own, in a group of theirs."""
        other = copy(self)
        other.database = database
        other.server = Server(database, self.random, slowness=self.server.slowness)
        other.group = Group(self.network, barrier=LIMITS.heartbeat_timeout, session_timeout=LIMITS.session_timeout)
        other.members, other.watch = [], None
        return other


@dataclass(frozen=True, slots=True)
class Design:
    """How a member is built; each part can be exchanged for one with a bug."""

    delivery: DeliveryMode = "exactly_once"
    atomic: bool = False
    table: Callable[[Server, Network], SimulatedTable] = SimulatedTable
    transactional_log: Callable[..., SimulatedTransactionalLog] = SimulatedTransactionalLog
    modes: Callable[..., Modes] = Modes
    leadership: Callable[..., Leadership] = Leadership
    clusters: int = 1
    detach_after: float | None = None
    shards: int | None = None
    """How many shards there are at first; None: one, and there are never more."""


SOUND = Design()


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    fields: dict[str, object]


@dataclass(frozen=True, slots=True)
class Assembly:
    """A harvester for a layout."""

    harvester: Harvester
    table: SimulatedTable
    number: int
    election: SimulatedRoles

    def leads(self) -> bool:
        return self.election.standing(0) is Standing.LEADER

    async def close(self) -> None:
        await self.election.close()


class Sharded:
    """A process whose outbox may have several shards: it looks for their number, and now and then again."""

    def __init__(
        self, layout: Callable[[], Awaitable[Layout]], assembled: Callable[[Layout], Assembly], events: Events
    ) -> None:
        self._layout = layout
        self._assembled = assembled
        self._events = events
        self._member: EngineMember | None = None
        self._is_stopped = asyncio.Event()

    async def run(self) -> None:
        while not self._is_stopped.is_set():
            with contextlib.suppress(OutboxError):
                first = await self._assemble()
                if self._is_stopped.is_set():
                    return await first.close()
                self._member = EngineMember(first, assemble=self._assemble, events=self._events)
                looking = asyncio.create_task(self._look())
                try:
                    return await self._member.run()
                finally:
                    looking.cancel()
            await asyncio.sleep(_LAYOUT_INTERVAL)

    async def stop(self, grace: float) -> None:
        self._is_stopped.set()
        if self._member is not None:
            await self._member.stop(grace)

    async def _assemble(self) -> Assembly:
        return self._assembled(await self._layout())

    async def _look(self) -> None:
        while self._member is not None:
            await asyncio.sleep(_LAYOUT_INTERVAL)
            with contextlib.suppress(OutboxError):
                self._member.heard_of((await self._layout()).number)


class Member:
    """A harvester in a process of its own."""

    def __init__(self, world: World, design: Design = SOUND) -> None:
        self.world = world
        self.design = design
        self.process = SimulatedProcess()
        self.events: list[Event] = []
        self.process.context.run(self._start if design.shards is None else self._start_sharded)
        world.members.append(self)

    def _start(self) -> None:
        world, design = self.world, self.design
        self.table = design.table(world.server, world.network)
        self._kafkas = {
            name: kafka_link(world.network, None if design.clusters == 1 else broker)
            for name, broker in world.brokers.items()
        }
        self._kafka = self._kafkas[PRIMARY] if design.clusters == 1 else kafka_link(world.network)
        self.election = SimulatedElection(world.group, self._kafka, LIMITS.heartbeat_timeout)

        async def new_log(*, individually: bool = False) -> Log:
            return SimulatedLog(world.broker, self._kafka, individually=individually)

        def log_on(cluster: str) -> TransactionalLogFactory:
            stuck = StuckIds()

            async def new_log() -> TransactionalLog:
                return design.transactional_log(world.brokers[cluster], self._kafkas[cluster], stuck=stuck)

            return new_log

        logs = {cluster: log_on(cluster) for cluster in world.brokers}
        measures = Measures(asyncio.get_running_loop().time)
        attach = Attaching(
            new_table=lambda _: design.table(world.server, world.network, link=self.table.link),
            new_logs=lambda _: logs,
            limits=LIMITS,
            measures=measures,
            new_view=self._new_view,
        )
        modes = design.modes(
            delivery=design.delivery,
            table=self.table,
            new_log=new_log,
            new_transactional_logs=logs,
            limits=LIMITS,
            atomic=design.atomic,
            report=self._report,
        )
        self.harvester = Harvester(
            shards=[
                Shard(
                    0,
                    self.table,
                    modes,
                    attach=attach if design.clusters > 1 else None,
                    detach_after=design.detach_after,
                )
            ],
            leadership=design.leadership,
            election=self.election,
            limits=LIMITS,
            events=self._report,
            measures=measures,
            new_view=self._new_view,
        )
        for link in self.links:
            link.watch = self._watch
        self.running = asyncio.create_task(self.harvester.run())

    def _new_view(self) -> UUID:
        return UUID(int=self.world.random.getrandbits(128), version=4)

    def _start_sharded(self) -> None:
        self._postgres = postgres_link(self.world.network)
        self._kafka = kafka_link(self.world.network)
        self._kafkas = {PRIMARY: self._kafka}
        if self.design.clusters > 1:
            self._kafkas = {name: kafka_link(self.world.network, broker) for name, broker in self.world.brokers.items()}
        self._measures = Measures(asyncio.get_running_loop().time)
        for link in self.links:
            link.watch = self._watch
        self.harvester = Sharded(self._layout, self._assembled, self._report)
        self.running = asyncio.create_task(self.harvester.run())

    async def _layout(self) -> Layout:
        server = self.world.server

        def effect(answer: Answer) -> None:
            server.run(None, answer, lambda: server.database.state.layout)

        layout: Layout = await self._postgres.ask("layout", effect, patience=LIMITS.heartbeat_timeout)
        return layout

    def _assembled(self, layout: Layout) -> Assembly:
        world, design = self.world, self.design
        stuck = {cluster: StuckIds() for cluster in world.brokers}

        def table_of(shard: int, *, reshards: bool = False) -> SimulatedTable:
            how = {"link": self._postgres, "layout": layout.number, "reshards": reshards}
            return design.table(world.server.of(shard), world.network, **how)

        def log_on(cluster: str, shard: int) -> TransactionalLogFactory:
            async def new_log() -> TransactionalLog:
                broker, link = world.brokers[cluster], self._kafkas[cluster]
                return design.transactional_log(broker, link, stuck=stuck[cluster], shard=shard)

            return new_log

        def logs_of(shard: int) -> Mapping[str, TransactionalLogFactory]:
            return {cluster: log_on(cluster, shard) for cluster in world.brokers}

        election = SimulatedRoles(world.groups(layout), self._kafka, LIMITS.heartbeat_timeout)
        reshard = Resharding(
            shards=layout.shards,
            new_table=lambda shard: table_of(shard, reshards=True),
            new_logs=logs_of,
            limits=LIMITS,
            measures=self._measures,
            events=self._report,
            new_view=self._new_view,
        )
        attach = Attaching(
            shards=layout.shards,
            new_table=lambda shard: table_of(shard, reshards=True),
            new_logs=logs_of,
            limits=LIMITS,
            measures=self._measures,
            new_view=self._new_view,
        )
        tables = [table_of(shard) for shard in range(layout.shards)]
        harvester = Harvester(
            shards=[
                Shard(
                    shard,
                    table,
                    design.modes(
                        delivery=design.delivery,
                        table=table,
                        new_log=None,
                        new_transactional_logs=logs_of(shard),
                        limits=LIMITS,
                        report=self._report,
                    ),
                    None if shard else reshard,
                    None if shard or design.clusters == 1 else attach,
                    design.detach_after,
                )
                for shard, table in enumerate(tables)
            ],
            leadership=design.leadership,
            election=election,
            limits=LIMITS,
            events=self._report,
            measures=self._measures,
            new_view=self._new_view,
        )
        return Assembly(harvester, tables[0], layout.number, election)

    def _report(self, event: str, /, **fields: object) -> None:
        self.events.append(Event(event, fields))

    @property
    def links(self) -> tuple[Link, ...]:
        """To Postgres, to what elects leaders, and to each cluster."""
        postgres = self.table.link if self.design.shards is None else self._postgres
        return postgres, *dict.fromkeys((self._kafka, *self._kafkas.values()))

    def _watch(self, name: str, phase: str) -> float:
        return 0.0 if self.world.watch is None else self.world.watch(self, name, phase)

    def kill(self) -> None:
        self.process.kill()
        self.world.members.remove(self)

    def stop(self) -> asyncio.Task[None]:
        """Ask it to end, as SIGTERM does."""
        self.world.members.remove(self)
        return self.process.context.run(asyncio.create_task, self._stop())

    async def _stop(self) -> None:
        await self.harvester.stop(LIMITS.heartbeat_timeout)
        await self.running
