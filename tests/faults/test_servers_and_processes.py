"""Members that are killed and stopped, servers that go and come back: in the middle of a load of 20,000 records."""

from __future__ import annotations

import os
import signal

import pytest
from faults.scene import LOOK, MARK, PURGE, Scene

RECORDS = 20_000


@pytest.fixture
def scene(scene: Scene) -> Scene:
    scene.records = RECORDS
    return scene


def test_the_leader_is_killed(scene: Scene) -> None:
    leader = scene.leader()
    standby = scene.standby()
    scene.midway()
    leader.popen.kill()
    leader.popen.wait()
    scene.was_in_flight()
    standby.wait_for("view")
    scene.ends_well()


def test_the_leader_is_stopped_and_goes_on_when_another_leads(scene: Scene) -> None:
    leader = scene.leader()
    standby = scene.standby()
    scene.midway()
    os.kill(leader.popen.pid, signal.SIGSTOP)
    scene.was_in_flight()
    stopped_at = len(leader.events)
    standby.wait_for("view")
    scene.midway()
    scene.was_in_flight()
    os.kill(leader.popen.pid, signal.SIGCONT)
    scene.next_event(leader, "fenced", "stood_by", since=stopped_at)
    scene.midway()
    scene.ends_well()


def test_postgres_is_restarted_at_once(scene: Scene) -> None:
    leader = scene.leader()
    scene.midway()
    before = len(leader.events)
    scene.was_in_flight()
    scene.servers.postgres.kill()
    scene.servers.postgres.start()
    scene.was_in_flight()
    scene.next_event(leader, "view", since=before)
    scene.ends_well()


def test_kafka_is_killed_and_restarted(scene: Scene) -> None:
    scene.leader()
    scene.midway()
    scene.servers.kafka.kill()
    scene.was_in_flight()
    scene.servers.kafka.start()
    scene.ends_well()


@pytest.mark.parametrize("purpose", [MARK, PURGE, LOOK], ids=["mark", "purge", "look"])
def test_the_leaders_backend_is_terminated(scene: Scene, purpose: bytes) -> None:
    leader = scene.leader()
    scene.midway()
    before = len(leader.events)
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE application_name = '{purpose.decode()}' AND datname = current_database()"
    )
    scene.wait_until(lambda: scene.outbox.query(end) == [(True,)])
    if purpose != LOOK:  # whose loss is noticed a little later
        scene.was_in_flight()
    scene.next_event(leader, "view", since=before)
    scene.ends_well()
