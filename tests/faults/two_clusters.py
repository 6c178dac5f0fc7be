"""An outbox that is published to two real clusters, its members, and what was stashed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from faults.clustered import command
from support.harvesting import PARTITIONS, PATIENCE, SHORT_SESSION, Outbox, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.clusters import attach, detach
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.values.fence import AttachHow
from airflow_outbox.values.verdict import State, Verdict

_RECORDS = 1_500


@dataclass(slots=True)
class TwoClusters:
    """An outbox that is published to two clusters, as consumers of either see it."""

    outbox: Outbox
    backup: Outbox
    members: list[Process] = field(default_factory=list)
    stashed: int = 0
    limits: dict[str, Any] = field(default_factory=dict)

    def stash(self, count: int = _RECORDS) -> None:
        self.outbox.stash(count, start=self.stashed)
        self.stashed += count

    def start(self, *, kill: str | None = None, armed: bool = False) -> Process:
        settings = {**self.outbox.settings, "limits": {**SHORT_SESSION, "batch_records": 50, **self.limits}}
        line = {"config": settings, "until": "forever"}
        member = Process(command(kill=kill, armed=armed), first_line=line)
        self.members.append(member)
        return member

    def dies(self, member: Process) -> None:
        """A member is killed while it harvests."""
        member.wait_for("took_over")
        os.kill(member.popen.pid, signal.SIGUSR1)
        self.stash()
        member.ends()
        assert member.popen.returncode == -signal.SIGKILL

    @property
    def config(self) -> HarvestConfig:
        return HarvestConfig.validated(self.outbox.settings, source="test")

    def detach(self, cluster: str) -> None:
        with psycopg.connect(self.outbox.database, autocommit=True) as connection:
            detach(connection, self.config, cluster)

    def attach(self, cluster: str, how: AttachHow | None = None) -> None:
        with psycopg.connect(self.outbox.database, autocommit=True) as connection:
            attach(connection, self.config, cluster, how=how, patience=PATIENCE)

    def is_harvested(self) -> None:
        """More records come, and leave the outbox."""
        self.stash()
        wait_until(lambda: self.outbox.left() == 0, doing=self._state)

    def _state(self) -> str:
        return str([event for member in self.members for event in member.events if event["event"] != "progress"][-40:])

    def ends_well(self) -> None:
        """Both clusters hold every record once, in the same order, and nothing is left."""
        wait_until(lambda: self.outbox.left() == 0)
        on_both = [
            [(message.partition(), message.key(), message.value()) for message in cluster.committed()]
            for cluster in (self.outbox, self.backup)
        ]
        first, second = ([[each for each in found if each[0] == n] for n in range(PARTITIONS)] for found in on_both)
        assert first == second
        assert sorted(int(value) for _, _, value in on_both[0]) == list(range(self.stashed))
        for key in {key for _, key, _ in on_both[0]}:
            numbers = [int(value) for _, other, value in on_both[0] if other == key]
            assert numbers == sorted(numbers)


@contextmanager
def two_clusters(
    database: str, topic: str, primary: EmbeddedKafka, backup: EmbeddedKafka, **settings: Any
) -> Iterator[TwoClusters]:
    """An outbox on these clusters, with these settings, too. Its members end with it."""
    outbox = make_outbox(
        database,
        bootstrap=primary.bootstrap,
        topic=topic,
        clusters={
            "primary": {"bootstrap.servers": primary.bootstrap},
            "backup": {"bootstrap.servers": backup.bootstrap},
        },
        **settings,
    )
    scene = TwoClusters(outbox, replace(outbox, bootstrap=backup.bootstrap))
    yield scene
    for member in scene.members:
        member.end()


def is_held(seen: list[Verdict], config: HarvestConfig) -> bool:
    """Whether a cluster that is away holds everything up, by the verdict, which is added to those that were seen."""
    seen.append(read_verdict(config))
    return seen[-1].state is State.HELD
