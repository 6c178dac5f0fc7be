"""A clock that is set by an hour while records are in flight, and set right again: that of Postgres, of the broker, or
of the machine with the members. Records come all the time, each once and in order.

What goes by a clock that is set takes an hour: longer than anybody waits here.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from faults.scene import EXACTLY_ONCE, Scene, Servers
from support.clocks import Clock
from support.harvesting import CALM, CHILD, PATIENCE, make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

HOUR, MINUTE = 3600, 60
TIMED_TOPIC = "timed-by-the-broker"


class ClockServers(Servers):
    """A Postgres and a Kafka, each with a clock of its own, and another one for the members."""

    def __init__(self, folder: Path, classpath: str) -> None:
        folder.mkdir()
        self.clocks = {whose: Clock(folder / f"clock-of-{whose}") for whose in ("postgres", "kafka", "members")}
        with self.clocks["postgres"].started():
            self.postgres = EmbeddedPostgres(folder / "postgres", fsync=False).start()
        properties = {"group.min.session.timeout.ms": "1000"}
        with self.clocks["kafka"].started():
            self.kafka = EmbeddedKafka(folder / "kafka", classpath=classpath, properties=properties).start()
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        topic = NewTopic(TIMED_TOPIC, 1, 1, config={"message.timestamp.type": "LogAppendTime"})
        admin.create_topics([topic])[TIMED_TOPIC].result()
        self._producer = Producer({"bootstrap.servers": self.kafka.bootstrap})

    @property
    def proxies(self) -> tuple[()]:
        return ()

    def brokers_time(self) -> float:
        found: list[float] = []

        def written(_: object, message: Message) -> None:
            found.append(message.timestamp()[1] / 1000)

        self._producer.produce(TIMED_TOPIC, on_delivery=written)
        self._producer.flush(PATIENCE)
        return found[0]


@pytest.fixture(scope="module")
def clock_servers(server_folder: Path, kafka_classpath: str) -> Iterator[ClockServers]:
    servers = ClockServers(server_folder / "clocks", kafka_classpath)
    yield servers
    servers.close()


@pytest.fixture
def scene(clock_servers: ClockServers) -> Iterator[Scene]:
    name = f"clock_{uuid.uuid4().hex[:12]}"
    database = clock_servers.postgres.create_database(name)
    bootstrap = clock_servers.kafka.bootstrap
    outbox = make_outbox(database, bootstrap=bootstrap, topic=f"{name}-data", delivery=EXACTLY_ONCE)
    scene = Scene(clock_servers, outbox, records=4_000, rate=1_000, limits=CALM)
    yield scene
    for clock in clock_servers.clocks.values():
        clock.set(0)
    scene.close()
    clock_servers.postgres.drop_database(name)


def set_clock(scene: Scene, servers: ClockServers, whose: str, seconds: int) -> None:
    """Set it, and wait until a server or the members say that time."""
    servers.clocks[whose].set(seconds)
    asked = {
        "postgres": lambda: float(scene.outbox.query("SELECT extract(epoch FROM clock_timestamp())")[0][0]),
        "kafka": servers.brokers_time,
        "members": lambda: datetime.fromisoformat(scene.members[-1].events[-1]["time"]).timestamp(),
    }[whose]
    scene.wait_until(lambda: abs(asked() - time.time() - seconds) < MINUTE)


def watch(scene: Scene, seconds: float) -> None:
    """Records come all this time."""
    since = time.monotonic()
    while time.monotonic() - since < seconds:
        scene.reader.first_since(time.time(), within=PATIENCE)


def ends_well(scene: Scene, *, since: int, states: frozenset[str] = frozenset({"healthy", "lagging"})) -> None:
    """And no other verdict was given since the first member had announced so many events."""
    scene.ends_well()
    found = {event["state"] for event in scene.members[0].events[since:] if event["event"] == "verdict"}
    assert found <= states, scene.story()


@pytest.mark.long(hours=1)
@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "back"])
def test_the_members_clock_is_set(scene: Scene, clock_servers: ClockServers, hours: int) -> None:
    command = clock_servers.clocks["members"].command(CHILD)
    leader, standby = scene.leader(command=command), scene.standby(command=command)
    scene.midway()
    since, views = len(leader.events), scene.views()
    for seconds in (hours * HOUR, 0):
        set_clock(scene, clock_servers, "members", seconds)
        watch(scene, CALM["session_timeout"] + 1)  # a member that was silent is missed then
    scene.wait_until(lambda: scene.group_members() == 2)
    assert scene.views() == views, f"another leads\n{scene.story()}"
    leader.popen.kill()
    leader.popen.wait()
    standby.wait_for("view")
    ends_well(scene, since=since)


@pytest.mark.long(hours=-1)
@pytest.mark.parametrize("whose", ["postgres", "kafka"])
@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "back"])
def test_a_servers_clock_is_set(scene: Scene, clock_servers: ClockServers, whose: str, hours: int) -> None:
    """Kafka's comes last: a broker whose clock was set back may make no topic for a while."""
    leader = scene.leader()
    scene.midway()
    since, views = len(leader.events), scene.views()
    for seconds in (hours * HOUR, 0):
        set_clock(scene, clock_servers, whose, seconds)
        watch(scene, 2)
    assert scene.views() == views, scene.story()
    # By the new time of Postgres, the last heartbeat is an hour old until the next one comes, a second later.
    ends_well(scene, since=since, states=frozenset({"healthy", "lagging", "no_leader"}))
