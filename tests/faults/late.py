"""The stage of requests that come late: servers behind frame proxies, members that publish through them, and a clerk
who notes for how long readers are held back.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from faults.checker import Judgement
from faults.frame_proxy import Cut, Delay, Fault, FrameProxy, Late, Step, Treatment, Twice
from faults.frames import Api, Request
from faults.load import IMPATIENT
from faults.proxy import Proxy
from faults.scene import Scene, Servers
from support.harvesting import CHILD, PARTITIONS, Process

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.postgres.table import OutboxTable

TAKE_OVER = 8.0
"""Seconds that a take-over may last: the session's time-out, and two more."""

_CLERKS_PAUSE = 0.05


class FrameServers(Servers):
    """A Postgres, and a Kafka behind frame proxies: `frames` before it for producers of records, `between` for what the
    broker asks itself.
    """

    def __init__(self, folder: Path, classpath: str) -> None:
        self.postgres = EmbeddedPostgres(folder / "framed-postgres", fsync=False).start()
        direct, produce, between, controller = (free_port() for _ in range(4))
        self.frames, self.between = FrameProxy(produce), FrameProxy(between)
        listeners = {
            "PLAINTEXT": (direct, direct),
            "PRODUCE": (produce, self.frames.port),
            "BETWEEN": (between, self.between.port),
        }
        self.kafka = EmbeddedKafka(
            folder / "framed-kafka",
            classpath=classpath,
            port=direct,
            properties={
                "listeners": ",".join(
                    [f"{name}://{LOOPBACK}:{port}" for name, (port, _) in listeners.items()]
                    + [f"CONTROLLER://{LOOPBACK}:{controller}"]
                ),
                "advertised.listeners": ",".join(
                    f"{name}://{LOOPBACK}:{port}" for name, (_, port) in listeners.items()
                ),
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in [*listeners, "CONTROLLER"]),
                "inter.broker.listener.name": "BETWEEN",
                "group.min.session.timeout.ms": "1000",
                "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            },
        ).start()

    @property
    def proxies(self) -> tuple[Proxy, ...]:
        return ()

    @property
    def bootstrap(self) -> str:
        """Where clients are led through `frames`."""
        return f"{LOOPBACK}:{self.frames.port}"

    def restore(self) -> None:
        for proxy in (self.frames, self.between):
            proxy.heal()
            proxy.on_strike = lambda: None
        super().restore()

    def close(self) -> None:
        super().close()
        for proxy in (self.frames, self.between):
            proxy.close()


class LateScene(Scene):
    """A scene whose members publish through `frames`; everything else goes directly."""

    @property
    def frames(self) -> FrameProxy:
        assert isinstance(self.servers, FrameServers)
        return self.servers.frames

    @property
    def between(self) -> FrameProxy:
        assert isinstance(self.servers, FrameServers)
        return self.servers.between

    def member(
        self, *, proxied: bool = True, limits: dict[str, Any] | None = None, command: Sequence[str] = CHILD
    ) -> Process:
        config = {**self.outbox.settings, "limits": limits or self.limits}
        config["kafka_producer"] = {"bootstrap.servers": f"{LOOPBACK}:{self.frames.port}"}
        config["kafka_producer"]["client.id"] = self.client_id(len(self.members))
        member = Process(list(command), first_line={"config": config, "until": "forever"})
        self.members.append(member)
        return member

    @staticmethod
    def client_id(place: int) -> str:
        """What a member's producers call themselves, by its place among the members."""
        return f"member-{place}"

    @property
    def ledger_topic(self) -> str:
        config = HarvestConfig.validated(self.outbox.settings, source="test")
        with psycopg.connect(self.outbox.database) as connection:
            return KafkaNames.of(config, OutboxTable(connection, config.name).identity().outbox_id).ledger_topic

    @contextmanager
    def readers_go_on(self) -> Iterator[None]:
        """No reader is held back for longer than a take-over lasts."""
        clerk = Clerk(self.servers.kafka.bootstrap, [(self.outbox.topic, PARTITIONS), (self.ledger_topic, 1)])
        try:
            yield
        finally:
            clerk.close()
        assert clerk.longest <= TAKE_OVER, f"readers were held back for {clerk.longest:.1f} s\n{self.story()}"

    def struck(self, *faults: Fault) -> None:
        """Wait until faults have struck, and what they struck has reached the broker, or never will."""
        self.wait_until(lambda: all(fault.struck.is_set() for fault in faults))
        self.wait_until(lambda: all(fault.delivered == len(fault.strikes) for fault in faults))

    def ends_well(self, *, within: float = 60) -> Judgement:
        for proxy in (self.frames, self.between):
            proxy.heal()
        return super().ends_well(within=within)


class Mischief:
    """Mistreats requests of transactions at random, most of them by lateness or doubling, until `enough` are late or
    doubled. A client's own copy of a late request is left alone, so that the client goes on.
    """

    _CHANCES: Mapping[int, float] = {
        Api.END: 0.3,
        Api.ADD_PARTITIONS: 0.1,
        Api.INIT_PRODUCER_ID: 0.3,
        Api.PRODUCE: 0.04,
    }

    def __init__(self, *, seed: int, enough: int) -> None:
        self._random = random.Random(seed)
        self._enough = enough
        self.fault: Fault | None = None

    def begin(self, proxy: FrameProxy) -> None:
        self.fault = proxy.mistreat(self._treat)

    @property
    def late_or_doubled(self) -> int:
        """How many there were; those that are late only once they have arrived."""
        strikes = [] if self.fault is None else list(self.fault.strikes)
        doubling = [strike for strike in strikes if self._is_late_or_doubled(strike.treatment)]
        return sum(strike.delivered.is_set() for strike in doubling)

    def _treat(self, request: Request) -> Treatment | None:
        if request.transactional_id is None or request.api not in self._CHANCES:
            return None
        if self.late_or_doubled >= self._enough or self._random.random() > self._CHANCES[request.api]:
            return None
        assert self.fault is not None
        waiting = [strike.request for strike in self.fault.strikes if not strike.delivered.is_set()]
        if any(known.api == request.api and known.transactional_id == request.transactional_id for known in waiting):
            return None
        chosen = self._random.random()
        if chosen < 0.6:
            return Late(self._moment(Api(request.api)))
        if chosen < 0.75:
            return Twice()
        if chosen < 0.9:
            return Cut(answered=True)
        return Cut(answered=False) if chosen < 0.95 else Delay(self._random.uniform(0.01, 0.5))

    def _moment(self, api: Api) -> tuple[Step, ...]:
        """In the next transaction of the same id, or a later one, or right after its end."""
        ends: tuple[Step, ...] = ((Api.END, self._random.choice([1, 1, 1, 2])),)
        produced: tuple[Step, ...] = ((Api.PRODUCE, self._random.randint(1, 5)),)
        if api is Api.INIT_PRODUCER_ID:
            return ((api, 1), *produced)
        return ends if self._random.random() < 0.2 else (*ends, *produced)

    @staticmethod
    def _is_late_or_doubled(treatment: Treatment) -> bool:
        return isinstance(treatment, Late | Twice) or treatment == Cut(answered=True)


class Clerk:
    """Notes for how long the stable offset of a partition stood still while there was more: what a reader who reads
    committed waited. Of several partitions, the longest.
    """

    def __init__(self, bootstrap: str, topics: Sequence[tuple[str, int]]) -> None:
        """`topics` are names with their number of partitions."""
        self.longest = 0.0
        self.held_now: dict[tuple[str, int], float] = {}
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **IMPATIENT})
        self._partitions = [TopicPartition(topic, number) for topic, count in topics for number in range(count)]
        self._since: dict[tuple[str, int], tuple[int, float]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clerk", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(_CLERKS_PAUSE):
            stable, end = (
                self._offsets(level) for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            now = time.monotonic()
            for place, offset in stable.items():
                known, since = self._since.get(place, (-1, now))
                if offset != known or offset >= end.get(place, offset):
                    known, since = offset, now
                self._since[place] = known, since
                self.held_now[place] = now - since
                self.longest = max(self.longest, now - since)

    def _offsets(self, level: IsolationLevel) -> dict[tuple[str, int], int]:
        asked = self._admin.list_offsets(
            {partition: OffsetSpec.latest() for partition in self._partitions},
            isolation_level=level,
            request_timeout=10,
        )
        return {(where.topic, where.partition): int(found.result().offset) for where, found in asked.items()}

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
