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
from faults.processes import go_on
from faults.scene import EXACTLY_ONCE, Scene
from support.harvesting import COMMAND, PATIENCE, SHORT_SESSION, Process, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.cli import main
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.values.verdict import State, Verdict

pytestmark = [pytest.mark.timed, pytest.mark.parametrize("delivery", [EXACTLY_ONCE])]

KAFKA_AWAY = 3.0
"""Seconds until operators know that Kafka can't be reached, that a topic is missing, or that Kafka is back."""
BETWEEN_LOOKS = 5.0
"""Seconds until a member tells a new verdict: as an event, in the task's log and in the metrics."""
DEFAULT_SESSION = 6.0
"""Seconds: `limits.session_timeout`, unless a test gives another."""
A_HEARTBEAT = 1.0
"""Seconds between two heartbeats in Postgres."""
SLACK = 10.0
"""Seconds that a busy machine may add; Kafka's client, or a statement, would take half a minute and more by itself."""


def expire_soon(scene: Scene) -> float:
    """Let sessions be short; after how many seconds a leader that is silent is one no more."""
    scene.limits = scene.outbox.settings["limits"] = SHORT_SESSION
    return SHORT_SESSION["session_timeout"] + A_HEARTBEAT


def look(scene: Scene) -> Verdict:
    return read_verdict(HarvestConfig.validated(scene.outbox.settings, source="test"))


def becomes(scene: Scene, state: State, *, says: str = "", within: float) -> Verdict:
    """Wait for this verdict, at most so long on a machine that is not busy; say how long it took."""
    began, found = time.monotonic(), look(scene)
    while found.state is not state or says not in found.cause:
        took = time.monotonic() - began
        assert took < within + SLACK, f"after {took:.1f} s it is {found}\n{scene.story()}"
        time.sleep(0.05)
        found = look(scene)
    print(f"\n{state.words} after {time.monotonic() - began:.1f} s: {found}")
    return found


def tells(member: Process, state: State, *, within: float, after: int) -> None:
    """Wait for the member's event of this verdict, after so many events; say how long it took."""

    def told() -> bool:
        events = member.events[after:]
        return any(event["event"] == "verdict" and event["state"] == state for event in events)

    took = wait_until(told, within=within + BETWEEN_LOOKS + SLACK, doing=lambda: str(member.events[after:]))
    print(f"\nits event {took:.1f} s later")


def healthy(scene: Scene) -> None:
    becomes(scene, State.HEALTHY, within=PATIENCE)


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
        found = becomes(scene, State.STALLED, says="can't reach Kafka at", within=KAFKA_AWAY)
        assert found.since is not None
        assert "Check bootstrap.servers" in found.remedy
        tells(leader, State.STALLED, within=KAFKA_AWAY, after=before)
        scene.outbox.stash(100)
        time.sleep(silence)  # the leader is a leader no more
        becomes(scene, State.STALLED, within=KAFKA_AWAY)
        scene.wait_until(lambda: "can't reach Kafka" in (shard(scene, tmp_path)["last_error"] or ""))
        scene.wait_until(lambda: status(scene, tmp_path, wants=3).startswith("STALLED since "))
        status(scene, tmp_path, "--fail-unless-leading", wants=3)
    finally:
        before = len(leader.events)
        (kafka.start if how == "killed" else kafka.resume)()
    healthy(scene)
    tells(leader, State.HEALTHY, within=PATIENCE, after=before)
    scene.wait_until(lambda: scene.outbox.left() == 0)
    scene.wait_until(lambda: scene.outbox.query("SELECT FROM outbox_trouble") == [], within=KAFKA_AWAY + SLACK)
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
        return bool(found[0].notes)

    scene.wait_until(is_noted, within=KAFKA_AWAY + SLACK)
    assert found[0].state is State.HEALTHY
    assert f":{other.popen.pid}: can't reach Kafka" in found[0].notes[0]
    scene.servers.to_kafka.heal()
    scene.wait_until(lambda: not look(scene).notes)


def test_postgres_is_away(scene: Scene, tmp_path: Path) -> None:
    leader = scene.leader()
    healthy(scene)
    before = len(leader.events)
    scene.servers.postgres.kill()
    becomes(scene, State.UNKNOWN, says="can't connect to Postgres", within=1)
    tells(leader, State.UNKNOWN, within=3, after=before)
    assert status(scene, tmp_path, wants=1).startswith("UNKNOWN")
    scene.servers.postgres.start()
    healthy(scene)


def test_the_only_member_is_frozen(scene: Scene) -> None:
    leader = scene.leader()
    healthy(scene)
    os.kill(leader.popen.pid, signal.SIGSTOP)
    within = DEFAULT_SESSION + A_HEARTBEAT
    found = becomes(scene, State.NO_LEADER, says=f":{leader.popen.pid} was last heard from", within=within)
    assert "start another harvester" in found.remedy
    go_on(leader)
    healthy(scene)


def test_the_leader_ends_in_order(scene: Scene, tmp_path: Path) -> None:
    """It is the command, which has time for that. A supervisor's child ends within a second, whatever it is at."""
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
    silence = expire_soon(scene)
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
        time.sleep(silence)
        becomes(scene, State.STALLED, within=KAFKA_AWAY)
        connection.execute("DROP TRIGGER keeps ON outbox")
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
