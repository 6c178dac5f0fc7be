"""The verdict while real servers and members go and come back: what it is, and after how many seconds.

`docs/concepts/verdict.md` has the bounds.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from faults.scene import EXACTLY_ONCE, Scene, go_on
from support.harvesting import BUSY, COMMAND, PATIENCE, Process

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.cli import main
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.values.verdict import State, Verdict

pytestmark = [pytest.mark.alone, pytest.mark.parametrize("delivery", [EXACTLY_ONCE])]

KAFKA_AWAY = 3.0
"""Seconds until operators know that Kafka can't be reached, that a topic is missing, or that Kafka is back."""
SILENCE = 6.0 + 1.0
"""The session timeout, and the time between two heartbeats."""


def look(scene: Scene) -> Verdict:
    return read_verdict(HarvestConfig.validated(scene.outbox.settings, source="test"))


def becomes(scene: Scene, state: State, *, says: str = "", within: float) -> Verdict:
    """Wait for this verdict, at most so long on a machine that is not busy; say how long it took."""
    began, found = time.monotonic(), look(scene)
    while found.state is not state or says not in found.cause:
        took = time.monotonic() - began
        assert took < within + BUSY, f"after {took:.1f} s it is {found}\n{scene.story()}"
        time.sleep(0.05)
        found = look(scene)
    print(f"\n{state.words} after {time.monotonic() - began:.1f} s: {found}")
    return found


def healthy(scene: Scene) -> None:
    becomes(scene, State.HEALTHY, within=PATIENCE)


def status(scene: Scene, folder: Path, *options: str, wants: int = 0) -> str:
    file = folder / "outbox.yaml"
    file.write_text(yaml.safe_dump(scene.outbox.settings))
    result = CliRunner().invoke(main, ["status", "-f", str(file), *options])
    assert result.exit_code == wants, result.output
    return str(result.stdout)


def shard(scene: Scene, folder: Path) -> dict[str, Any]:
    [found] = json.loads(status(scene, folder, "--output", "json"))["shards"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("members", [1, 2], ids=["alone", "with a standby"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_kafka_is_away(scene: Scene, how: str, members: int, tmp_path: Path) -> None:
    scene.leader()
    if members == 2:
        scene.standby()
    scene.outbox.stash(100)
    healthy(scene)
    kafka = scene.servers.kafka
    (kafka.kill if how == "killed" else kafka.pause)()
    try:
        found = becomes(scene, State.STALLED, says="can't reach Kafka at", within=KAFKA_AWAY)
        assert found.since is not None
        assert "Check bootstrap.servers" in found.remedy
        scene.outbox.stash(100)
        time.sleep(SILENCE)  # the leader is a leader no more
        assert look(scene).state is State.STALLED
        assert "can't reach Kafka" in shard(scene, tmp_path)["last_error"]
        assert status(scene, tmp_path).startswith("STALLED since ")
        status(scene, tmp_path, "--fail-unless-leading", wants=3)
    finally:
        (kafka.start if how == "killed" else kafka.resume)()
    healthy(scene)
    scene.wait_until(lambda: scene.outbox.left() == 0)
    scene.wait_until(lambda: scene.outbox.query("SELECT FROM outbox_trouble") == [], within=KAFKA_AWAY + BUSY)
    assert shard(scene, tmp_path)["last_error"] is None


def test_one_member_alone_does_not_reach_kafka(scene: Scene) -> None:
    scene.leader()
    other = scene.member(proxied=True)
    other.wait_for("progress", standing="standby")
    healthy(scene)
    scene.servers.to_kafka.hold()
    scene.wait_until(lambda: bool(look(scene).notes), within=KAFKA_AWAY + BUSY)
    found = look(scene)
    assert found.state is State.HEALTHY
    assert f":{other.popen.pid}: can't reach Kafka" in found.notes[0]
    scene.servers.to_kafka.heal()
    scene.wait_until(lambda: not look(scene).notes)


def test_postgres_is_away(scene: Scene, tmp_path: Path) -> None:
    scene.leader()
    healthy(scene)
    scene.servers.postgres.kill()
    becomes(scene, State.UNKNOWN, says="can't connect to Postgres", within=1)
    assert status(scene, tmp_path, wants=1).startswith("UNKNOWN")
    scene.servers.postgres.start()
    healthy(scene)


def test_the_only_member_is_frozen(scene: Scene) -> None:
    leader = scene.leader()
    healthy(scene)
    os.kill(leader.popen.pid, signal.SIGSTOP)
    found = becomes(scene, State.NO_LEADER, says=f":{leader.popen.pid} was last heard from", within=SILENCE)
    assert "start another harvester" in found.remedy
    go_on(leader)
    healthy(scene)


def test_the_leader_ends_in_order(scene: Scene, tmp_path: Path) -> None:
    leader = scene.leader()
    scene.outbox.stash(1000)
    scene.wait_until(lambda: scene.outbox.left() == 0)
    healthy(scene)
    status(scene, tmp_path, "--fail-unless-leading", "--fail-if-older-than", "60s")
    leader.popen.terminate()
    leader.ends()
    found = look(scene)
    assert (found.state, found.remedy) == (State.NO_LEADER, "Start a harvester")
    now = shard(scene, tmp_path)
    assert (now["member"], now["rate"], now["in_flight"]) == (None, 0, 0)
    assert "nobody" in status(scene, tmp_path)


def test_the_leader_hands_over(scene: Scene, tmp_path: Path) -> None:
    leader, standby = scene.leader(), scene.standby()
    healthy(scene)
    scene.outbox.query("UPDATE outbox_shard SET handover_asked_at = clock_timestamp() RETURNING 1")
    standby.wait_for("view")
    healthy(scene)
    assert shard(scene, tmp_path)["member"].endswith(f":{standby.popen.pid}")
    assert leader.popen.poll() is None


def test_a_topic_of_the_outboxs_own_is_missing(scene: Scene) -> None:
    scene.leader()
    healthy(scene)
    topic = f"airflow-outbox.{scene.outbox.query('SELECT outbox_id FROM outbox_state')[0][0]}.leader"
    admin = AdminClient({"bootstrap.servers": scene.outbox.bootstrap})
    admin.delete_topics([topic])[topic].result(10)
    found = becomes(scene, State.STALLED, says=f"topic {topic} does not exist", within=KAFKA_AWAY)
    assert found.remedy == "Run `airflow-outbox init`"


def test_a_data_topic_is_missing(scene: Scene) -> None:
    scene.leader()
    healthy(scene)
    with psycopg.connect(scene.outbox.database) as connection:
        stash(connection, [OutboxRecord("no.such.topic", "k", "v")])
    found = becomes(scene, State.LAGGING, says="no.such.topic", within=KAFKA_AWAY)
    assert "1 unknown_topic" in found.cause
    scene.outbox.stash(100)
    scene.wait_until(lambda: scene.outbox.left() == 0)


def test_no_take_over_succeeds(scene: Scene) -> None:
    """The leader's error is written without a fence: it has none."""
    leader = scene.leader()
    healthy(scene)
    with psycopg.connect(scene.outbox.database, autocommit=True) as connection:
        connection.execute(
            "CREATE TRIGGER keeps BEFORE DELETE ON outbox FOR EACH ROW"
            " EXECUTE FUNCTION suppress_redundant_updates_trigger()"
        )
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'airflow-outbox mark' AND datname = current_database()"
        )
        found = becomes(scene, State.STALLED, says="has the trigger keeps", within=KAFKA_AWAY)
        assert f":{leader.popen.pid}: " in found.cause
        time.sleep(SILENCE)
        assert look(scene).state is State.STALLED
        connection.execute("DROP TRIGGER keeps ON outbox")
    healthy(scene)
    assert scene.outbox.query("SELECT FROM outbox_trouble") == []


def test_watching_ends_with_an_interrupt(scene: Scene, tmp_path: Path) -> None:
    scene.leader()
    healthy(scene)
    status(scene, tmp_path)
    options = ["-f", str(tmp_path / "outbox.yaml"), "--watch", "--interval", "200ms", "--output", "json"]
    watching = Process([*COMMAND, "status", *options])
    try:
        scene.wait_until(lambda: len(watching.events) > 2)
        watching.popen.send_signal(signal.SIGINT)
        watching.ends()
        assert watching.popen.returncode == 0
    finally:
        watching.end()
