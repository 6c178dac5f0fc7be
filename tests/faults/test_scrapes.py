"""`/metrics` of two members under each condition that operators are alerted to, on real servers.

The answers are recorded in `tests/support/scrapes`, and `tests/integration/test_alerts.py` goes by them. This test says
whether they still look so. To record one again, delete its folder and run the test.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from faults.processes import go_on
from faults.scene import EXACTLY_ONCE, Scene
from support.harvesting import COMMAND, Process
from support.prometheus import SCRAPES, Condition, promtool, recorded, samples

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.operate.clusters import detach
from airflow_outbox.operate.reshard import reshard
from airflow_outbox.operate.status import ask_pause
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.verdict import State

pytestmark = [
    pytest.mark.parametrize("delivery", [EXACTLY_ONCE]),
]
PATIENT = {"limits": {"session_timeout": 20}}
GROUP = "readers"
IMPATIENT = {"limits": {"heartbeat_timeout": 1, "session_timeout": 3}}


class Members:
    """A leader and a member that stands by, each with a port for metrics."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene = scene
        self._folder = folder
        self.leader = self._start("leader", "view")
        self.standby = self._start("standby", "progress")
        scene.outbox.stash(1000)
        scene.wait_until(lambda: scene.outbox.left() == 0)

    def _start(self, name: str, event: str) -> Process:
        # One that stands by takes a leader's silence for its end earlier than the group does.
        settings = {**self.scene.outbox.settings, **(PATIENT if name == "leader" else IMPATIENT)}
        if "clusters" not in settings:
            settings["kafka_producer"] = {"bootstrap.servers": f"{LOOPBACK}:{self.scene.servers.to_produce.port}"}
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(settings))
        member = Process([*COMMAND, "harvest", "-f", str(file), "--metrics-port", "0"])
        self.scene.members.append(member)
        member.wait_for(event)
        return member

    def scrape(self) -> Condition:
        """The answers of the members that answer."""
        return {name: self.samples(text) for name, text in self.texts()}

    def samples(self, text: str) -> dict[str, str]:
        """The samples, with one name for all tests' topics."""
        return samples(text.replace(self.scene.outbox.topic, "orders"))

    def texts(self) -> Iterator[tuple[str, str]]:
        for name, member in (("leader", self.leader), ("standby", self.standby)):
            port = member.wait_for("serving")["port"]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    yield name, answer.read().decode()
            except OSError:
                continue

    def become_like(self, condition: str) -> None:
        """Wait until both tell all that was recorded of this condition: summaries and gauges are there."""
        known = recorded(condition) if (SCRAPES / condition).exists() else {}

        def are_whole() -> bool:
            found = self.scrape()
            return all(found.get(name, {}).keys() >= series.keys() for name, series in known.items())

        self.scene.wait_until(are_whole)
        if not known:
            time.sleep(5)

    def until(self, state: State) -> Condition:
        """Scrape until all that answer say that the outbox is in this state."""
        found: list[Condition] = []

        def tells() -> bool:
            found[:] = [self.scrape()]
            return bool(found[0]) and all(states(scrape) == {state} for scrape in found[0].values())

        self.scene.wait_until(tells)
        return found[0]


def states(scrape: dict[str, str]) -> set[State]:
    return {
        state for state in State if any(f'state="{state}"' in name and float(value) for name, value in scrape.items())
    }


def healthy(members: Members) -> Condition:
    return members.until(State.HEALTHY)


def stalled(members: Members) -> Condition:
    members.scene.servers.kafka.kill()
    return members.until(State.STALLED)


def unknown(members: Members) -> Condition:
    members.scene.servers.postgres.kill()
    return members.until(State.UNKNOWN)


def leaderless(members: Members) -> Condition:
    os.kill(members.leader.popen.pid, signal.SIGSTOP)
    return members.until(State.NO_LEADER)


def halted(members: Members) -> Condition:
    members.scene.outbox.query("UPDATE outbox_state SET halted = 'restored'")
    return members.until(State.HALTED)


def paused(members: Members) -> Condition:
    config = HarvestConfig.validated(members.scene.outbox.settings, source="test")
    with psycopg.connect(config.data_source, autocommit=True) as connection:
        ask_pause(connection, config.name, paused=True)
    old(members)
    return members.until(State.PAUSED)


def lagging(members: Members) -> Condition:
    members.scene.servers.to_produce.hold()  # no error, for a while
    old(members)
    return members.until(State.LAGGING)


def parked(members: Members) -> Condition:
    with psycopg.connect(members.scene.outbox.database) as connection:
        stash(connection, [OutboxRecord("no-such-topic", "k", str(number)) for number in range(3)])
    return members.until(State.LAGGING)


def sharded(members: Members) -> Condition:
    config = HarvestConfig.validated(members.scene.outbox.settings, source="test")
    reshard(config, shards=2, patience=60, tell=lambda _: None)
    found: list[Condition] = []

    def tells() -> bool:
        found[:] = [members.until(State.HEALTHY)]
        return all(any('shard="1"' in name for name in scrape) for scrape in found[0].values())

    members.scene.wait_until(tells)
    return found[0]


def clustered(members: Members, backup: EmbeddedKafka) -> Condition:
    return members.until(State.HEALTHY)


def held(members: Members, backup: EmbeddedKafka) -> Condition:
    backup.kill()
    members.scene.outbox.stash(5)
    return members.until(State.HELD)


def detached(members: Members, backup: EmbeddedKafka) -> Condition:
    config = HarvestConfig.validated(members.scene.outbox.settings, source="test")
    with psycopg.connect(config.data_source, autocommit=True) as connection:
        detach(connection, config, "backup")
    found: list[Condition] = []

    def tells() -> bool:
        found[:] = [members.until(State.HEALTHY)]
        counts = 'airflow_outbox_cluster_counts{cluster="backup",outbox="outbox"}'
        return all(scrape[counts] == "0.0" for scrape in found[0].values())

    members.scene.wait_until(tells)
    return found[0]


def positioned(members: Members) -> Condition:
    """A group's positions follow to the other cluster."""
    outbox = members.scene.outbox
    settings = {"bootstrap.servers": outbox.bootstrap, "group.id": GROUP, "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        consumer.commit(offsets=[TopicPartition(outbox.topic, 0, 1)], asynchronous=False)
    found: list[Condition] = []
    follows = 'airflow_outbox_positions_groups{outbox="outbox",positions="following"}'

    def tells() -> bool:
        found[:] = [members.until(State.HEALTHY)]
        return all(scrape.get(follows) == "1.0" for scrape in found[0].values())

    members.scene.wait_until(tells)
    return found[0]


def old(members: Members) -> None:
    """Stash records that look older than they are."""
    members.scene.outbox.query(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value)"
        f" SELECT now() - interval '3 min', '{members.scene.outbox.topic}', 'k', '' FROM generate_series(1, 5)"
    )


CONDITIONS: dict[str, Callable[[Members], Condition]] = {
    each.__name__: each for each in (healthy, stalled, unknown, leaderless, halted, paused, lagging, parked, sharded)
}


CLUSTERED: dict[str, Callable[[Members, EmbeddedKafka], Condition]] = {
    each.__name__: each for each in (clustered, held, detached)
}


@pytest.mark.long
@pytest.mark.parametrize("condition", CONDITIONS)
def test_members_say_what_was_recorded(scene: Scene, tmp_path: Path, condition: str) -> None:
    members = Members(scene, tmp_path)
    members.become_like("healthy")
    try:
        found = CONDITIONS[condition](members)
    finally:
        go_on(members.leader)
    require_recorded(condition, found)


@pytest.mark.long
@pytest.mark.parametrize("condition", CLUSTERED)
def test_members_of_an_outbox_with_two_clusters_say_what_was_recorded(
    spanning_scene: Scene, backup: EmbeddedKafka, tmp_path: Path, condition: str
) -> None:
    members = Members(spanning_scene, tmp_path)
    members.become_like("clustered")
    require_recorded(condition, CLUSTERED[condition](members, backup))


@pytest.mark.long
def test_members_that_have_positions_replicated_say_what_was_recorded(spanning_scene: Scene, tmp_path: Path) -> None:
    spanning_scene.outbox.settings["positions"] = {"enabled": True, "groups": [GROUP]}
    config = HarvestConfig.validated(spanning_scene.outbox.settings, source="test")
    with closing(OutboxTable(connect(config.data_source, purpose="test"), config.name)) as table:
        make_internal_topics(config, KafkaNames.of(config, table.identity().outbox_id))
    members = Members(spanning_scene, tmp_path)
    members.become_like("clustered")
    require_recorded("positioned", positioned(members))


def require_recorded(condition: str, found: Condition) -> None:
    """Fail unless members tell the same series and state as were recorded. Record what was not."""
    folder = SCRAPES / condition
    if not folder.exists():
        folder.mkdir(parents=True)
        for name, scrape in found.items():
            lines = [f"{series} {value}\n" for series, value in scrape.items()]
            (folder / f"{name}.txt").write_text("".join(lines))
    known = recorded(condition)
    assert {name: set(scrape) for name, scrape in found.items()} == {
        name: set(scrape) for name, scrape in known.items()
    }
    assert {name: states(scrape) for name, scrape in found.items()} == {
        name: states(scrape) for name, scrape in known.items()
    }


def test_promtool_finds_no_fault_with_the_metrics(scene: Scene, tmp_path: Path) -> None:
    members = Members(scene, tmp_path)
    members.become_like("healthy")
    for name, text in members.texts():
        found = promtool("check", "metrics", text=text)
        assert found.returncode == 0, f"{name}: {found.stdout}{found.stderr}"
