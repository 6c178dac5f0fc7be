"""The stage of requests that come late: servers behind frame proxies, members that publish through them, and a clerk
who notes for how long readers are held back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from faults.checker import Verdict
from faults.frame_proxy import FrameProxy
from faults.frames import Request
from faults.load import IMPATIENT
from faults.proxy import Proxy
from faults.scene import Scene, Servers
from harvesting import CHILD, PARTITIONS, Process

from airflow_outbox.demo.kafka import EmbeddedKafka
from airflow_outbox.demo.loopback import LOOPBACK, free_port
from airflow_outbox.demo.postgres import EmbeddedPostgres

TAKE_OVER = 8.0
"""Seconds that a take-over may last: the session's time-out, and two more."""

LEDGER = "ledger"
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
        member = Process(list(command), first_line={"config": config, "until": "forever"})
        self.members.append(member)
        return member

    def is_its_own(self, request: Request) -> bool:
        """Whether a request is of a producer of this outbox."""
        outbox_id = str(self.outbox.query("SELECT outbox_id FROM outbox_leader")[0][0])
        return request.transactional_id is not None and outbox_id in request.transactional_id

    def ends_well(self, *, within: float = 60) -> Verdict:
        """The same, and every record is there once, and first sightings and repetitions are in order."""
        for proxy in (self.frames, self.between):
            proxy.heal()
        return super().ends_well(within=within)


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
            stable, end = (self._offsets(level) for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED))
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
            {partition: OffsetSpec.latest() for partition in self._partitions}, isolation_level=level, request_timeout=10
        )
        return {(where.topic, where.partition): int(found.result().offset) for where, found in asked.items()}

    def close(self) -> None:
        self._closing.set()
        self._thread.join()


def topics_of(scene: Scene, ledger_topic: str) -> list[tuple[str, int]]:
    return [(scene.outbox.topic, PARTITIONS), (ledger_topic, 1)]
