"""An outbox that is published to several clusters, each of which single members may be cut off from."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Message
from faults.clustered import command
from faults.listeners import listening
from faults.proxy import Proxy
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.harvesting import PARTITIONS, PATIENCE, SHORT_SESSION, Outbox, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.clusters import promote
from airflow_outbox.postgres.membership import read_membership
from airflow_outbox.values.membership import Membership

BOTH = {"primary": "primary", "west": "backup"}
PROMOTED = {"west": "primary", "primary": "owed"}
DETACH_AFTER = 1.0
CUT_OFF_LIMITS = {"batch_records": 50, "delivery_timeout": 2, "transaction_timeout": 3}
POSTGRES = "postgres"
"""The name of the proxy before Postgres, among those of the clusters."""


class Region:
    """A broker that is a cluster of its own, also behind a proxy."""

    def __init__(self, folder: Path, classpath: str) -> None:
        direct, behind = free_port(), free_port()
        self.proxy = Proxy(behind)
        listeners = {"PLAINTEXT": (direct, direct), "PROXIED": (behind, self.proxy.port)}
        self.kafka = EmbeddedKafka(
            folder,
            classpath=classpath,
            port=direct,
            properties=listening(listeners),
        ).start()

    def close(self) -> None:
        self.proxy.close()
        self.kafka.kill()


@dataclass(slots=True)
class Regions:
    """An outbox on several clusters, the primary first, with its members and what was stashed.

    `proxies` are those that a member may be behind: of clusters by their names, and Postgres'.
    """

    outbox: Outbox
    on: Mapping[str, Outbox]
    brokers: Mapping[str, EmbeddedKafka]
    proxies: Mapping[str, Proxy]
    limits: dict[str, Any]
    members: list[Process] = field(default_factory=list)
    stashed: int = 0

    def stash(self, count: int = 1_000) -> None:
        self.outbox.stash(count, start=self.stashed)
        self.stashed += count

    def start(
        self,
        *,
        behind: Collection[str] = (),
        limits: Mapping[str, Any] | None = None,
        child: list[str] | None = None,
        **strike: Any,
    ) -> Process:
        """Start a member that is `behind` these proxies; `strike` is when it kills or stops itself, unless `child` is
        the command of one that does otherwise.
        """
        settings = {**self.settings(behind), "limits": {**SHORT_SESSION, **self.limits, **(limits or {})}}
        member = Process(child or command(**strike), first_line={"config": settings, "until": "forever"})
        self.members.append(member)
        return member

    def leader(self, **how: Any) -> Process:
        """Start a member, and wait until it leads."""
        member = self.start(**how)
        member.wait_for("took_over")
        return member

    def settings(self, behind: Collection[str] = ()) -> dict[str, Any]:
        """The configuration of somebody who reaches these through their proxies."""
        clusters: dict[str, dict[str, Any]] = {
            name: dict(own) for name, own in self.outbox.settings["clusters"].items()
        }
        for name in {*behind} - {POSTGRES}:
            clusters[name]["bootstrap.servers"] = f"{LOOPBACK}:{self.proxies[name].port}"
        database = self.outbox.database
        if POSTGRES in behind:
            port = self.proxies[POSTGRES].port
            database = make_conninfo(database, host=LOOPBACK, port=port, sslmode="disable", gssencmode="disable")
        return {**self.outbox.settings, "clusters": clusters, "data_source": database}

    def promote(self, cluster: str, *, behind: Collection[str] = ()) -> Membership:
        """An operator promotes a cluster."""
        return promote(HarvestConfig.validated(self.settings(behind), source="test"), cluster)

    @property
    def membership(self) -> Membership:
        with psycopg.connect(self.outbox.database) as connection:
            return read_membership(connection, HarvestConfig.validated(self.outbox.settings, source="test").name)

    def drains(self) -> None:
        """All that was stashed leaves the outbox."""
        wait_until(lambda: self.outbox.left() == 0, doing=self.story)

    def story(self) -> str:
        events = [[each for each in member.events if each["event"] != "progress"][-15:] for member in self.members]
        return f"{self.outbox.left()} left, {self.membership}, {events}"

    def ends_well(self, *clusters: str) -> None:
        """These clusters (all, unless given) hold every record once, in the same order, and nothing is left."""
        self.drains()
        found = {name: self.on[name].committed() for name in clusters or self.on}
        assert_same(found)
        messages = next(iter(found.values()))
        assert sorted(int(message.value() or b"") for message in messages) == list(range(self.stashed))
        for key in {message.key() for message in messages}:
            numbers = [int(message.value() or b"") for message in messages if message.key() == key]
            assert numbers == sorted(numbers)

    def loses(self, primary: EmbeddedKafka) -> float:
        """Lose the primary for good while records come, and promote the other one. How many seconds it takes from the
        command on until records come out again.
        """
        ending = threading.Event()

        def load() -> None:
            while not ending.wait(0.05):
                self.stash(20)

        writer = threading.Thread(target=load)
        writer.start()
        try:
            wait_until(lambda: self._first() not in (None, 1), doing=self.story)
            primary.kill()
            time.sleep(2)  # whatever was on its way is there, or will never be
            wait_until(lambda: self.outbox.left() > 0)
            first = self._first()
            assert first is not None
            begun = time.monotonic()
            assert self.promote("west").parts == PROMOTED
            wait_until(lambda: (self._first() or first + 1) > first, doing=self.story)
            return time.monotonic() - begun
        finally:
            ending.set()
            writer.join(PATIENCE)

    def _first(self) -> int | None:
        """The first id in the outbox."""
        [(found,)] = self.outbox.query("SELECT min(id) FROM outbox")
        return found

    def close(self) -> None:
        for member in self.members:
            if member.popen.poll() is None:
                os.kill(member.popen.pid, signal.SIGCONT)
            member.end()
        for proxy in self.proxies.values():
            proxy.heal()
        for broker in self.brokers.values():
            broker.start()


def assert_same(found: Mapping[str, Sequence[Message]]) -> None:
    """The clusters hold the same records in the same order within each partition."""

    def by_partition(messages: Sequence[Message]) -> list[list[tuple[Any, Any]]]:
        return [
            [(message.key(), message.value()) for message in messages if message.partition() == number]
            for number in range(PARTITIONS)
        ]

    (first, one), *others = ((name, by_partition(messages)) for name, messages in found.items())
    for name, other in others:
        assert one == other, f"{first} and {name} differ"


@contextmanager
def regions(
    database: str,
    topic: str,
    brokers: Mapping[str, EmbeddedKafka],
    proxies: Mapping[str, Proxy],
    *,
    limits: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Regions]:
    """An outbox that is published to these clusters, the first of which is called `primary`."""
    outbox = make_outbox(
        database,
        bootstrap=next(iter(brokers.values())).bootstrap,
        topic=topic,
        clusters={name: {"bootstrap.servers": broker.bootstrap} for name, broker in brokers.items()},
        **settings,
    )
    on = {name: replace(outbox, bootstrap=broker.bootstrap) for name, broker in brokers.items()}
    with Proxy(int(str(conninfo_to_dict(database)["port"]))) as to_postgres:
        scene = Regions(outbox, on, brokers, {**proxies, POSTGRES: to_postgres}, dict(limits or {}))
        try:
            yield scene
        finally:
            scene.close()


def regional(database: str, regions_of_two: Mapping[str, Region], topic: str) -> AbstractContextManager[Regions]:
    """An outbox in both, of which the primary alone is required. A leader notices soon that a cluster is away."""
    brokers: dict[str, EmbeddedKafka] = {name: region.kafka for name, region in regions_of_two.items()}
    proxies = {name: region.proxy for name, region in regions_of_two.items()}
    required = {"require": "primary", "detach_after": DETACH_AFTER}
    return regions(database, topic, brokers, proxies, limits=CUT_OFF_LIMITS, **required)
