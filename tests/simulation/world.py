"""The simulated world: one database, one Kafka, one consumer group, and the members that share them.

A member is a process: it can be stopped and continued, killed, and cut off from either server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from itertools import count
from random import Random
from uuid import UUID

from simulation.group import Group, SimulatedElection
from simulation.kafka import Broker
from simulation.log import SimulatedLog, SimulatedTransactionalLog, kafka_link
from simulation.loop import SimulatedProcess
from simulation.network import Link, Network
from simulation.postgres import Database
from simulation.statements import Server
from simulation.table import SimulatedTable

from airflow_outbox.harvest.config import DeliveryMode, Limits
from airflow_outbox.harvest.harvester import Harvester
from airflow_outbox.harvest.kafka.fencing import StuckIds
from airflow_outbox.harvest.modes import Modes
from airflow_outbox.harvest.ports import Log, TransactionalLog

LIMITS = Limits(
    max_in_flight_records=40,
    mark_records=15,
    batch_records=12,
    poll_interval=0.05,
    heartbeat_timeout=1,
    session_timeout=3,
)
TRANSACTION_TIMEOUT = 8.0


class World:
    """What all members share. `trouble` is the probability that a message is lost, in any way."""

    def __init__(self, seed: int, *, trouble: float = 0.0, latency: float = 0.005) -> None:
        self.random = Random(seed)
        ticks = count()
        self.tick: Callable[[], int] = lambda: next(ticks)
        self.network = Network(self.random, trouble, latency)
        self.database = Database(self.tick)
        self.server = Server(self.database, self.random, slowness=latency)
        self.broker = Broker(self.random, self.tick, transaction_timeout=TRANSACTION_TIMEOUT)
        self.group = Group(self.network, barrier=LIMITS.heartbeat_timeout, session_timeout=LIMITS.session_timeout)
        self.members: list[Member] = []
        self.watch: Callable[[Member, str, str], float] | None = None
        """Told the name of every question of every member, and whether it is `asked` or `answered`; how many seconds it
        is to travel longer."""

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
    harvester: Callable[..., Harvester] = Harvester


SOUND = Design()


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    fields: dict[str, object]


class Member:
    """A harvester in a process of its own."""

    def __init__(self, world: World, design: Design = SOUND) -> None:
        self.world = world
        self.design = design
        self.process = SimulatedProcess()
        self.events: list[Event] = []
        self.process.context.run(self._start)
        world.members.append(self)

    def _start(self) -> None:
        world, design = self.world, self.design
        self.table = design.table(world.server, world.network)
        self._kafka = kafka_link(world.network)
        self.election = SimulatedElection(world.group, self._kafka, LIMITS.heartbeat_timeout)

        async def new_log(*, individually: bool = False) -> Log:
            return SimulatedLog(world.broker, self._kafka, individually=individually)

        stuck = StuckIds()

        async def new_transactional_log() -> TransactionalLog:
            return design.transactional_log(world.broker, self._kafka, stuck=stuck)

        modes = design.modes(
            delivery=design.delivery,
            table=self.table,
            new_log=new_log,
            new_transactional_log=new_transactional_log,
            limits=LIMITS,
            atomic=design.atomic,
            report=self._report,
        )
        self.harvester = design.harvester(
            table=self.table,
            modes=modes,
            election=self.election,
            limits=LIMITS,
            events=self._report,
            new_view=lambda: UUID(int=world.random.getrandbits(128), version=4),
        )
        for link in self.links:
            link.watch = self._watch
        self.running = asyncio.create_task(self.harvester.run())

    def _report(self, event: str, /, **fields: object) -> None:
        self.events.append(Event(event, fields))

    @property
    def links(self) -> tuple[Link, Link]:
        """To Postgres and to Kafka."""
        return self.table.link, self._kafka

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
