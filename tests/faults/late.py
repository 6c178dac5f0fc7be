"""The stage of requests that come late: servers behind frame proxies, members that publish through them, and a clerk
who notes for how long readers are held back.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from faults.checker import Judgement
from faults.frame_proxy import Fault, FrameProxy
from faults.frames import Api, Request
from faults.listeners import listening
from faults.load import IMPATIENT
from faults.proxy import Proxy
from faults.scene import Scene, Servers
from faults.treatments import Cut, Delay, Drop, Late, Step, Treatment, Twice
from support.harvesting import CHILD, PARTITIONS, PATIENCE, Process

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.postgres.table import OutboxTable

HELD_BACK = 45.0
"""Seconds that readers may be held back on a busy machine: enough for a member to start and to take over, and less than
a transaction that nobody ends would take (`_ENDS_NO_TRANSACTION`, and 60 s by default).
"""

QUICK = {"statement_timeout": 3, "delivery_timeout": 4, "transaction_timeout": 5}
"""Limits by which a request that is never answered is given up in seconds."""

_ENDS_NO_TRANSACTION = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "600000"}
"""The broker must not end a transaction by itself, however short its time is: the engine has to."""
_STAYS = {"broker.session.timeout.ms": "120000"}
"""Nobody starts the broker again, so its controller need not miss it soon; a busy machine may hold it up."""
_CLERKS_PAUSE = 0.2
_LONGEST_STEP = 2 * _CLERKS_PAUSE


class FrameServers(Servers):
    """A Postgres, and a Kafka behind frame proxies: `frames` before it for producers of records, `between` for what the
    broker asks itself.
    """

    def __init__(self, folder: Path, classpath: str) -> None:
        self.postgres = EmbeddedPostgres(folder / "postgres", fsync=False).start()
        direct, produce, between = (free_port() for _ in range(3))
        self.frames, self.between = FrameProxy(produce), FrameProxy(between)
        listeners = {
            "PLAINTEXT": (direct, direct),
            "PRODUCE": (produce, self.frames.port),
            "BETWEEN": (between, self.between.port),
        }
        self.kafka = EmbeddedKafka(
            folder / "kafka",
            classpath=classpath,
            port=direct,
            properties=listening(listeners, between="BETWEEN") | _ENDS_NO_TRANSACTION | _STAYS,
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
        config["kafka_producer"] = {
            **config.get("kafka_producer", {}),
            "bootstrap.servers": f"{LOOPBACK}:{self.frames.port}",
            "client.id": self.client_id(len(self.members)),
        }
        member = Process(list(command), first_line={"config": config, "until": "forever"})
        self.members.append(member)
        return member

    @staticmethod
    def client_id(place: int) -> str:
        """The name of a member's producers, by its place among the members."""
        return f"member-{place}"

    @property
    def ledger_topic(self) -> str:
        config = HarvestConfig.validated(self.outbox.settings, source="test")
        with psycopg.connect(self.outbox.database) as connection:
            return KafkaNames.of(config, OutboxTable(connection, config.name).identity().outbox_id).ledger_topic

    @contextmanager
    def readers_go_on(self) -> Iterator[None]:
        """No reader is held back until a transaction's time is up."""
        clerk = Clerk(self.servers.kafka.bootstrap, [(self.outbox.topic, PARTITIONS), (self.ledger_topic, 1)])
        try:
            yield
        finally:
            clerk.close()
        print(f"readers were held back for {clerk.longest:.1f} s")
        assert clerk.longest <= HELD_BACK, f"readers were held back for {clerk.longest:.1f} s\n{self.story()}"

    def struck(self, *faults: Fault) -> None:
        """Wait until faults have struck, and what they struck has reached the broker, or never will."""
        self.wait_until(lambda: all(fault.struck.is_set() for fault in faults))
        self.wait_until(lambda: all(fault.delivered == len(fault.strikes) for fault in faults))

    def ends_well(self, *, within: float = 2 * PATIENCE) -> Judgement:
        for proxy in (self.frames, self.between):
            proxy.heal()
        return super().ends_well(within=within)


class Mischief:
    """Mistreats requests of transactions at random, most of them by lateness or doubling, until `enough` are late or
    doubled. A client's own copy of a late request is left alone, so that the client goes on.

    Some requests the broker never gets, or only after their client has given them up. Each ends a term, so what its
    successor asks first is left alone. The broker's own markers are doubled and delayed, too; they don't count.
    """

    _CHANCES: Mapping[int, float] = {
        Api.END: 0.3,
        Api.ADD_PARTITIONS: 0.1,
        Api.INIT_PRODUCER_ID: 0.3,
        Api.PRODUCE: 0.04,
        Api.WRITE_MARKERS: 0.3,
    }
    _LOST = 0.02
    """The share of the mistreated requests that end a term."""
    _AFTERWARDS = 8.0
    """Seconds in which all is left alone then."""
    _TOO_LATE = 7.0
    """Seconds after which a client with the limits `QUICK` has given up any request."""

    def __init__(self, *, seed: object, enough: int) -> None:
        self._random = random.Random(f"{seed}")
        self._random_of_markers = random.Random(f"{seed} of markers")
        self._enough = enough
        self._lost_at = -math.inf
        self.fault: Fault | None = None

    def begin(self, frames: FrameProxy, between: FrameProxy) -> None:
        self.fault = frames.mistreat(self._treat)
        between.mistreat(self._treat_marker)

    @property
    def late_or_doubled(self) -> int:
        """How many there were; those that are late only once they have arrived."""
        strikes = [] if self.fault is None else list(self.fault.strikes)
        doubling = [strike for strike in strikes if self._is_late_or_doubled(strike.treatment)]
        return sum(strike.delivered.is_set() for strike in doubling)

    def _treat(self, request: Request) -> Treatment | None:
        if request.transactional_id is None or request.api not in self._CHANCES:
            return None
        if request.at < self._lost_at + self._AFTERWARDS or self.late_or_doubled >= self._enough:
            return None
        if self._random.random() > self._CHANCES[request.api]:
            return None
        assert self.fault is not None
        waiting = [strike.request for strike in self.fault.strikes if not strike.delivered.is_set()]
        if any(known.api == request.api and known.transactional_id == request.transactional_id for known in waiting):
            return None
        chosen = self._random.random()
        if chosen < self._LOST:
            self._lost_at = request.at
            return self._random.choice([Drop(), Delay(self._TOO_LATE)])
        if chosen < 0.6:
            return Late(self._moment(Api(request.api)))
        if chosen < 0.75:
            return Twice()
        if chosen < 0.9:
            return Cut(answered=True)
        return Cut(answered=False) if chosen < 0.95 else Delay(self._random.uniform(0.01, 0.5))

    def _treat_marker(self, request: Request) -> Treatment | None:
        draw = self._random_of_markers
        if request.api != Api.WRITE_MARKERS or draw.random() > self._CHANCES[request.api]:
            return None
        others = (Twice(), Cut(answered=True), Cut(answered=False))
        return draw.choice(others) if draw.random() < 0.5 else Delay(draw.uniform(0.01, 0.5))

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
    """Notes for how long the stable offset of a partition stood still while there was more: how long a reader that
    reads committed waited. With several partitions, it notes the longest time.

    It looks every 0.2 s. What passes between two looks counts at most as twice that: on a machine, or at a broker, that
    stands still, nobody could have gone on.
    """

    def __init__(self, bootstrap: str, topics: Sequence[tuple[str, int]]) -> None:
        """`topics` are names with their number of partitions."""
        self.longest = 0.0
        self.held_now: dict[tuple[str, int], float] = {}
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **IMPATIENT})
        self._partitions = [TopicPartition(topic, number) for topic, count in topics for number in range(count)]
        self._since: dict[tuple[str, int], tuple[int, float]] = {}
        self._clock = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clerk", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked_at = time.monotonic()
        while not self._closing.wait(_CLERKS_PAUSE):
            try:
                stable, end = (
                    self._offsets(level) for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
                )
            except KafkaException:  # the broker does not answer now
                continue
            self._clock += min(time.monotonic() - looked_at, _LONGEST_STEP)
            looked_at, now = time.monotonic(), self._clock
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
            request_timeout=PATIENCE,
        )
        return {(where.topic, where.partition): int(found.result().offset) for where, found in asked.items()}

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
