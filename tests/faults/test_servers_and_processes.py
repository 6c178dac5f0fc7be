"""Members that are killed and stopped, servers that go and come back: in the middle of a load of 20,000 records."""

from __future__ import annotations

import pytest
from faults.processes import go_on
from faults.scene import AT_LEAST_ONCE, LOOK, MARK, PURGE, Scene
from support.harvesting import SHORT_SESSION

RECORDS = 20_000


@pytest.fixture
def scene(scene: Scene) -> Scene:
    scene.records, scene.limits = RECORDS, SHORT_SESSION
    return scene


def test_the_leader_is_killed(scene: Scene) -> None:
    scene.leader()
    scene.standby()
    scene.midway()
    leader = scene.stop_the_leader()
    leader.popen.kill()
    leader.popen.wait()
    scene.await_leader()
    scene.ends_well()


@pytest.mark.long(delivery=AT_LEAST_ONCE)
def test_the_leader_is_stopped_and_goes_on_when_another_leads(scene: Scene) -> None:
    scene.leader()
    scene.standby()
    scene.midway()
    leader = scene.stop_the_leader()
    scene.wait_until(lambda: scene.leading() not in (None, leader))
    scene.midway()
    since = go_on(leader)
    scene.next_event(leader, "fenced", "stood_by", since=since)
    scene.midway()
    scene.ends_well()


@pytest.mark.long(delivery=AT_LEAST_ONCE)
def test_postgres_is_restarted_at_once(scene: Scene) -> None:
    leader = scene.leader()
    scene.midway()
    scene.stop_in_flight(leader)
    scene.servers.postgres.kill()
    since = go_on(leader)
    scene.servers.postgres.start()
    scene.next_event(leader, "view", since=since)
    scene.ends_well()


@pytest.mark.long(delivery=AT_LEAST_ONCE)
def test_kafka_is_killed_and_restarted(scene: Scene) -> None:
    leader = scene.leader()
    scene.midway()
    scene.stop_in_flight(leader)
    scene.servers.kafka.kill()
    go_on(leader)
    scene.servers.kafka.start()
    scene.ends_well()


@pytest.mark.long(delivery=AT_LEAST_ONCE)
@pytest.mark.parametrize("purpose", [MARK, PURGE, LOOK], ids=["mark", "purge", "look"])
def test_the_leaders_backend_is_terminated(scene: Scene, purpose: bytes) -> None:
    leader = scene.leader()
    scene.midway()
    backend = f"pg_stat_activity WHERE application_name = '{purpose.decode()}' AND datname = current_database()"

    def is_terminated() -> bool:
        scene.stop_in_flight(leader)
        if scene.outbox.query(f"SELECT pg_terminate_backend(pid) FROM {backend}") == [(True,)]:
            return True
        go_on(leader)  # it has none for a moment
        return False

    scene.wait_until(is_terminated)
    since = go_on(leader)
    scene.next_event(leader, "view", since=since)
    scene.ends_well()
