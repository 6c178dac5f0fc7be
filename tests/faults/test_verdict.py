"""The verdict while real servers and members go and come back. How soon is in `tests/timings/faults`."""

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
from faults.processes import go_on
from faults.scene import EXACTLY_ONCE, Scene
from faults.verdicts import becomes, expire_soon, healthy, look, tells
from support.harvesting import CALM, COMMAND, PATIENCE, Process

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.cli import main
from airflow_outbox.values.verdict import State, Verdict

pytestmark = pytest.mark.parametrize("delivery", [EXACTLY_ONCE])


def status(scene: Scene, folder: Path, *options: str, wants: int | None = 0) -> str:
    file = folder / "outbox.yaml"
    file.write_text(yaml.safe_dump(scene.outbox.settings))
    result = CliRunner().invoke(main, ["status", "-f", str(file), *options])
    assert wants is None or result.exit_code == wants, result.output
    return str(result.stdout)


def shard(scene: Scene, folder: Path) -> dict[str, Any]:
    [found] = json.loads(status(scene, folder, "--output", "json", wants=None))["shards"]
    assert isinstance(found, dict)
    return found


@pytest.mark.long(how="killed", members=1)
@pytest.mark.long(how="frozen", members=2)
@pytest.mark.parametrize("members", [1, 2], ids=["alone", "with a standby"])
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_kafka_is_away(scene: Scene, how: str, members: int, tmp_path: Path) -> None:
    silence = expire_soon(scene)
    leader = scene.leader()
    if members == 2:
        scene.standby()
    scene.outbox.stash(100)
    healthy(scene)
    kafka, before = scene.servers.kafka, len(leader.events)
    (kafka.kill if how == "killed" else kafka.pause)()
    try:
        found = becomes(scene, State.STALLED, says="can't reach Kafka at")
        assert found.since is not None
        assert "Check bootstrap.servers" in found.remedy
        tells(scene, leader, State.STALLED, after=before)
        scene.outbox.stash(100)
        time.sleep(silence)  # the leader is a leader no more
        becomes(scene, State.STALLED)
        scene.wait_until(lambda: "can't reach Kafka" in (shard(scene, tmp_path)["last_error"] or ""))
        scene.wait_until(lambda: status(scene, tmp_path, wants=3).startswith("STALLED since "))
        status(scene, tmp_path, "--fail-unless-leading", wants=3)
    finally:
        before = len(leader.events)
        (kafka.start if how == "killed" else kafka.resume)()
    healthy(scene)
    tells(scene, leader, State.HEALTHY, after=before)
    scene.wait_until(lambda: scene.outbox.left() == 0)
    scene.wait_until(lambda: scene.outbox.query("SELECT FROM outbox_trouble") == [])
    # A question that was asked while Kafka was away may be given up a little later, and is told once more.
    scene.wait_until(lambda: shard(scene, tmp_path)["last_error"] is None)


def test_one_member_alone_does_not_reach_kafka(scene: Scene) -> None:
    scene.leader()
    other = scene.member(proxied=True)
    other.wait_for("progress", standing="standby")
    healthy(scene)
    scene.servers.to_kafka.hold()
    found: list[Verdict] = []

    def is_noted() -> bool:
        found[:] = [look(scene)]
        return any(f":{other.popen.pid}: can't reach Kafka" in note for note in found[0].notes)

    scene.wait_until(is_noted)
    healthy(scene)
    scene.servers.to_kafka.heal()
    scene.wait_until(lambda: not look(scene).notes)


def test_postgres_is_away(scene: Scene, tmp_path: Path) -> None:
    leader = scene.leader()
    healthy(scene)
    before = len(leader.events)
    scene.servers.postgres.kill()
    becomes(scene, State.UNKNOWN, says="can't connect to Postgres")
    tells(scene, leader, State.UNKNOWN, after=before)
    assert status(scene, tmp_path, wants=1).startswith("UNKNOWN")
    scene.servers.postgres.start()
    healthy(scene)


def test_the_only_member_is_frozen(scene: Scene) -> None:
    leader = scene.leader()
    healthy(scene)
    os.kill(leader.popen.pid, signal.SIGSTOP)
    found = becomes(scene, State.NO_LEADER, says=f":{leader.popen.pid} was last heard from")
    assert "start another harvester" in found.remedy
    go_on(leader)
    healthy(scene)


def test_the_leader_ends_in_order(scene: Scene, tmp_path: Path) -> None:
    """It is the command, which has time for that. A supervisor's child ends within a second, whatever it is at."""
    scene.outbox.settings["limits"] = CALM
    status(scene, tmp_path, wants=None)
    leader = scene.leader(command=[*COMMAND, "harvest", "-f", str(tmp_path / "outbox.yaml")])
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
    members = {scene.leader(), scene.standby()}
    healthy(scene)
    leader = scene.await_leader()
    [standby] = members - {leader}
    since = len(standby.events)
    scene.outbox.query("UPDATE outbox_shard SET handover_asked_at = clock_timestamp() RETURNING 1")
    scene.next_event(standby, "view", since=since)
    healthy(scene)
    scene.wait_until(lambda: str(shard(scene, tmp_path)["member"]).endswith(f":{standby.popen.pid}"))
    assert leader.popen.poll() is None


def test_a_topic_of_the_outboxs_own_is_missing(scene: Scene) -> None:
    scene.leader()
    healthy(scene)
    topic = f"airflow-outbox.{scene.outbox.query('SELECT outbox_id FROM outbox_state')[0][0]}.leader"
    admin = AdminClient({"bootstrap.servers": scene.outbox.bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE)
    found = becomes(scene, State.STALLED, says=f"topic {topic} does not exist")
    assert found.remedy == "Run `airflow-outbox init`"


def test_a_data_topic_is_missing(scene: Scene) -> None:
    scene.leader()
    healthy(scene)
    with psycopg.connect(scene.outbox.database) as connection:
        stash(connection, [OutboxRecord("no.such.topic", "k", "v")])
    found = becomes(scene, State.LAGGING, says="no.such.topic")
    assert "1 unknown_topic" in found.cause
    scene.outbox.stash(100)
    scene.wait_until(lambda: scene.outbox.left() == 0)


def test_no_take_over_succeeds(scene: Scene) -> None:
    """The leader's error is written without a fence: it has none."""
    silence = expire_soon(scene)
    leader = scene.leader()
    healthy(scene)
    with psycopg.connect(scene.outbox.database, autocommit=True) as connection:
        connection.execute(
            "CREATE TRIGGER keeps BEFORE DELETE ON outbox_parked FOR EACH ROW"
            " EXECUTE FUNCTION suppress_redundant_updates_trigger()"
        )
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'airflow-outbox mark' AND datname = current_database()"
        )
        found = becomes(scene, State.STALLED, says="has the trigger keeps")
        assert f":{leader.popen.pid}: " in found.cause
        time.sleep(silence)
        becomes(scene, State.STALLED)
        connection.execute("DROP TRIGGER keeps ON outbox_parked")
    healthy(scene)
    scene.wait_until(lambda: scene.outbox.query("SELECT FROM outbox_trouble") == [])


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
