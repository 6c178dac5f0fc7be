"""The stage of requests that come late: servers behind frame proxies, and members that publish through them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from faults.checker import Judgement
from faults.frame_proxy import Fault, FrameProxy
from faults.frames import Api, Request
from faults.listeners import listening
from faults.proxy import Proxy
from faults.scene import Scene, Servers
from faults.stable_offsets import StableOffsets
from faults.treatments import Cut, Delay, Drop, Late, Step, Treatment, Twice
from support.harvesting import CHILD, PARTITIONS, PATIENCE, Process

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.postgres.table import OutboxTable

QUICK = {"statement_timeout": 3, "delivery_timeout": 4, "transaction_timeout": 5}
"""Limits by which a request that is never answered is given up in seconds."""

_ENDS_NO_TRANSACTION = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000"}
"""The broker must not end a transaction by itself, however short its time is: the engine has to. One that nobody ends
holds readers back for ever.
"""
_REPEATS_NO_MARKERS = {"request.timeout.ms": "600000"}
"""Nor may it repeat markers that a test holds back."""
_STAYS = {"broker.session.timeout.ms": "120000"}
"""Nobody starts the broker again, so its controller need not miss it soon; a busy machine may hold it up."""


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
            properties=listening(listeners, between="BETWEEN") | _ENDS_NO_TRANSACTION | _REPEATS_NO_MARKERS | _STAYS,
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
        """In the end no transaction holds readers back, whoever has begun it: nobody but a leader ends any."""
        yield
        offsets = self.stable_offsets()
        self.wait_until(lambda: not offsets.behind())

    def stable_offsets(self) -> StableOffsets:
        """Of the records' topic and the ledger."""
        places = [(self.outbox.topic, number) for number in range(PARTITIONS)] + [(self.ledger_topic, 0)]
        return StableOffsets(self.servers.kafka.bootstrap, places)

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
