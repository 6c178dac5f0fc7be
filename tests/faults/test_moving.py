"""A real consumer group moves between two real clusters: it skips nothing, and reads little again."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from faults.moving import NAMES, READ, Moving
from faults.two_clusters import TwoClusters
from psycopg.conninfo import conninfo_to_dict
from support.harvesting import PATIENCE, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.positions.process import replicator_of
from airflow_outbox.positions.replicator import GroupNews, Replicator
from airflow_outbox.sensors.positions import OutboxPositionsSensor
from airflow_outbox.triggers.positions import OutboxPositionsTrigger


@contextmanager
def broker_to_kill(folder: Path, classpath: str) -> Iterator[EmbeddedKafka]:
    """A cluster of its own. The shared broker would be away for minutes: its sessions are long."""
    with EmbeddedKafka(folder, classpath=classpath, properties={"group.min.session.timeout.ms": "1000"}) as server:
        yield server
        server.kill()


@pytest.fixture(scope="module")
def primary(request: pytest.FixtureRequest, server_folder: Path, kafka_classpath: str) -> Iterator[EmbeddedKafka]:
    """The first cluster, which only the long form kills."""
    if request.config.getoption("--faults") != "long":
        yield request.getfixturevalue("kafka")
        return
    with broker_to_kill(server_folder / "moving-primary", kafka_classpath) as server:
        yield server


@pytest.fixture(scope="module")
def backup(server_folder: Path, kafka_classpath: str) -> Iterator[EmbeddedKafka]:
    """A second cluster."""
    with broker_to_kill(server_folder / "moving", kafka_classpath) as server:
        yield server


@pytest.fixture
def moving(
    database: str, primary: EmbeddedKafka, backup: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Moving]:
    outbox = make_outbox(
        database,
        bootstrap=primary.bootstrap,
        topic=topic_prefix + "data",
        clusters={
            "primary": {"bootstrap.servers": primary.bootstrap},
            "backup": {"bootstrap.servers": backup.bootstrap},
        },
        positions={"enabled": True, "groups": [topic_prefix + "*"], "interval": 0.2},
    )
    scene = Moving(TwoClusters(outbox, replace(outbox, bootstrap=backup.bootstrap)), topic_prefix + "group", tmp_path)
    yield scene
    for reader in scene.readers:
        reader.ends(signal.SIGKILL)
    for member in scene.clusters.members:
        member.end()


@pytest.fixture
def replicator(moving: Moving) -> Iterator[Replicator]:
    """One that only looks, unless it is told more."""
    with closing(replicator_of(moving.clusters.config)) as replicator:
        yield replicator


def replicates(member: Process) -> None:
    """Wait until positions are replicated beside a member."""
    member.wait_for("positions_started")


def kill_the_replicator(member: Process) -> None:
    """Kill the process that replicates positions beside a member: another one, if it has just been replaced."""

    def is_killed() -> bool:
        started = [event["pid"] for event in member.events if event["event"] == "positions_started"]
        try:
            os.kill(started[-1], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    wait_until(is_killed, doing=lambda: str(member.events[-5:]))


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.long)])
def test_a_group_that_moves_to_and_fro_skips_nothing(
    protocol: str, moving: Moving, primary: EmbeddedKafka, backup: EmbeddedKafka, is_long: bool
) -> None:
    moving.protocol, moving.session = protocol, 6
    clusters = moving.clusters
    member = clusters.start()
    replicates(member)
    allowed = 0
    for number in range(10 if is_long else 4):
        clusters.stash(20_000 if is_long else 600)
        before = len(set(moving.read()))
        reader = moving.reader(NAMES[number % 2])
        wait_until(lambda before=before: len(set(moving.read())) > before + 100)  # type: ignore[misc]
        match ("replicator", "harvester", "reader", "broker", "other broker")[number % 5]:
            case "replicator":
                kill_the_replicator(member)
            case "harvester":
                os.killpg(member.popen.pid, signal.SIGKILL)
                member = clusters.start()
                replicates(member)
            case "reader":
                reader.ends(signal.SIGKILL)
                allowed += 2_000  # what it had read and not committed
                reader = moving.reader(NAMES[number % 2])
            case broker:
                server = (primary, backup)[number % 2 if broker == "broker" else 1 - number % 2]
                server.kill()
                clusters.stash(50)
                server.start()
                allowed += 2_000  # as before: the group may meet again without that member
        moving.reads_all()
        reader.ends()
        moving.may_move_soon(NAMES[(number + 1) % 2])
    # It is idle at the end, and moves, too.
    last = moving.reader(NAMES[number % 2 - 1])
    clusters.stash(10)
    moving.reads_all()
    last.ends()
    assert moving.read_again() <= allowed
    wait_until(lambda: moving.seen() == [moving.group])


def test_a_group_moves_to_a_cluster_that_was_reset(moving: Moving, replicator: Replicator) -> None:
    """It skips nothing of what is published from then on. What came before is on the primary only; it is read there."""
    clusters = moving.clusters
    replicates(clusters.start())
    clusters.stash(300)
    reader = moving.reader("primary")
    moving.reads_all()
    moving.may_follow(replicator, "backup")
    clusters.detach("backup")
    clusters.stash(100)
    moving.reads_all()
    moving.wipe("backup")
    clusters.attach("backup", how="reset")
    clusters.stash(600)
    wait_until(lambda: len(set(moving.read())) > 500)
    reader.ends()
    moving.may_move(replicator, "backup")
    clusters.stash(50)
    reader = moving.reader("backup")
    moving.reads_all()
    reader.ends()
    moving.may_move(replicator, "primary")
    reader = moving.reader("primary")
    clusters.stash(50)
    moving.reads_all()
    reader.ends()
    assert moving.read_again() <= 50, "a batch: within one, gaps may be read again"


@pytest.fixture
def stopped(moving: Moving, replicator: Replicator, monkeypatch: pytest.MonkeyPatch) -> Moving:
    """A group that has read all on the primary, and stopped. Nobody replicates by itself any more."""
    monkeypatch.setattr("airflow_outbox.positions.groups._TIMEOUT", PATIENCE)  # a busy machine loses no cluster
    clusters = moving.clusters
    del clusters.outbox.settings["positions"]["groups"]
    clusters.start()
    clusters.stash(200)
    reader = moving.reader("primary")
    moving.reads_all()
    wait_until(lambda: clusters.outbox.left() == 0)  # so it is on the backup, too
    reader.ends()
    return moving


def test_a_group_that_is_stopped_moves_by_a_command(stopped: Moving, replicator: Replicator) -> None:
    group = stopped.group
    stopped.clusters.outbox.settings["positions"]["groups"] = [group]
    assert f"{group}: primary; backup is " in stopped.run("status")
    said = stopped.run("move", group, "--to", "backup", answer="y\n")
    assert "no record is read again" in said or "records are read again" in said
    assert f"start the consumers of {group} at backup" in said
    assert f"{group}: primary; backup is in step" in stopped.run("status", "--group", group)
    [found] = json.loads(stopped.run("status", "--output", "json"))["groups"]
    assert (found["home"], found["clusters"]["backup"]["behind"]) == ("primary", 0)
    topic = stopped.clusters.outbox.topic
    where = ("--from", "primary", "--to", "backup", "--topic", topic, "--partition", "0")
    ours, theirs = stopped.offsets("primary")[0], stopped.offsets("backup")[0]
    assert f"{topic}/0: {ours} on primary is {theirs} on backup\nafter a batch that both have\n" in stopped.run(
        "lookup", *where, "--offset", str(ours)
    )
    assert f"{topic}/0: 0 on primary is 0 on backup" in stopped.run("lookup", *where, "--time", "2026-01-01")
    stopped.clusters.stash(50)
    reader = stopped.reader("backup")
    stopped.reads_all()
    reader.ends()
    assert stopped.read_again() == 0


@pytest.fixture
def connections(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Airflow's connections to the servers: those of Kafka by cluster."""
    outbox = moving.clusters.outbox
    server = conninfo_to_dict(outbox.database)
    known = {"host": server["host"], "port": int(str(server["port"])), "schema": server["dbname"]}
    known |= {"login": server["user"], "password": server["password"]}
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps({"conn_type": "postgres", **known}))
    for cluster, kafka in outbox.settings["clusters"].items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{cluster.upper()}", json.dumps({"conn_type": "kafka", "extra": kafka}))
    return {cluster: cluster for cluster in NAMES}


async def test_a_dag_waits_until_a_group_may_move(
    stopped: Moving, replicator: Replicator, connections: dict[str, str]
) -> None:
    sensor = OutboxPositionsSensor(task_id="wait", group=stopped.group, to="backup", kafka_conn_ids=connections)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    trigger = deferred.value.trigger
    assert isinstance(trigger, OutboxPositionsTrigger)

    async def event() -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            (found,) = [each.payload async for each in trigger.run()]
        return dict(found)

    waiting = asyncio.create_task(event())
    await asyncio.sleep(2)
    assert not waiting.done(), "nobody has replicated the position yet"
    await asyncio.to_thread(lambda: wait_until(lambda: not replicator.look().groups[stopped.group].decision.commits))
    assert sensor.execute_complete({}, await waiting) == stopped.group
    trigger.to = "north"
    assert "the outbox has no cluster north. It has primary, backup" in (await event())["error"]


def test_rewinds_stand_and_two_homes_are_left_alone(stopped: Moving, replicator: Replicator) -> None:
    """Two replicators look in turn."""
    group = stopped.group
    with closing(replicator_of(stopped.clusters.config, groups=[group])) as other:
        both = itertools.cycle([replicator, other])

        def looks() -> GroupNews:
            for _ in range(3):
                news = next(both).look().groups[group]
            return news

        wait_until(lambda: looks().failure is None)
        assert min(stopped.offsets("backup")) > 0
        stopped.reset("backup", 0)
        looks()
        assert stopped.offsets("backup") == [0] * READ
        assert max(stopped.offsets("primary")) <= 1, "the rewind is on both"
        stopped.reset("primary", 10)
        looks()
        assert stopped.offsets("primary") == [10] * READ
        assert 0 < max(stopped.offsets("backup")) <= 10
        stopped.reset("primary", 4)
        stopped.reset("backup", 8)
        assert looks().decision.homes == ("backup", "primary")
        assert (stopped.offsets("primary"), stopped.offsets("backup")) == ([4] * READ, [8] * READ)
    stopped.clusters.outbox.settings["positions"]["groups"] = [group]
    assert "left alone, because somebody else has committed on backup and primary" in stopped.run("status")
    said = stopped.run("move", group, "--to", "backup", "--yes")
    assert "instead of 8, which somebody else has committed" in said
    assert max(stopped.offsets("backup")) <= 4


def test_a_group_goes_on_where_it_was_when_its_cluster_is_lost(
    moving: Moving, replicator: Replicator, backup: EmbeddedKafka
) -> None:
    clusters = moving.clusters
    replicates(clusters.start())
    clusters.stash(200)
    reader = moving.reader("backup")
    moving.reads_all()
    moving_to = "primary"
    wait_until(lambda: moving.has_committed_all("backup"))
    wait_until(lambda: min(moving.offsets(moving_to)) > 0)
    wait_until(lambda: not replicator.look(commits=False).groups[moving.group].decision.commits)
    backup.kill()
    try:
        reader.ends(signal.SIGKILL)
        assert "backup" in replicator.look().away
        reader = moving.reader(moving_to)
        clusters.detach("backup")
        clusters.stash(50)
        moving.reads_all()
        reader.ends()
        assert moving.read_again() == 0
    finally:
        backup.start()
