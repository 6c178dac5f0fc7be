"""A leader that is stopped at a chosen point, for longer than its session lasts, and goes on when another leads; and
what becomes of that without one of the fences.
"""

from __future__ import annotations

import os
import signal

import psycopg
import pytest
from faults.processes import go_on, is_stopped
from faults.scene import EXACTLY_ONCE, PURGE, Scene
from faults.zombie import command
from support.harvesting import SHORT_SESSION, Process

pytestmark = pytest.mark.parametrize("delivery", [EXACTLY_ONCE])


@pytest.fixture
def scene(scene: Scene) -> Scene:
    scene.limits = SHORT_SESSION
    return scene


def stop(scene: Scene, member: Process, point: str) -> None:
    """Let a member stop at a point, with records in flight; a witness is told once a second, whatever is in flight."""
    os.kill(member.popen.pid, signal.SIGUSR1)
    scene.wait_until(lambda: is_stopped(member))
    if point != "witness":
        scene.is_amid()


def zombie(scene: Scene, point: str, *, without: tuple[str, ...] = ()) -> None:
    """A leader stops at a point, another leads, and in the middle of that the first one goes on.

    The other one joins only then: a busy machine must not make it lead before.
    """
    leader = scene.leader(command=command(stop=point, without=without))
    scene.midway()
    stop(scene, leader, point)
    successor = scene.leader(command=command(without=without))
    # By its own account: consumers don't see past a transaction that nobody has ended.
    scene.wait_until(lambda: scene.published_by(successor) > 0)
    since = go_on(leader)
    scene.next_event(leader, "fenced", "stood_by", since=since)
    scene.midway()


@pytest.mark.long(point="read")
@pytest.mark.long(point="purge")
@pytest.mark.parametrize("point", ["read", "produce", "write the ledger", "commit", "purge", "witness"])
def test_a_leader_that_was_stopped_has_no_effect(scene: Scene, point: str) -> None:
    zombie(scene, point)
    scene.ends_well()


def test_a_leader_that_was_stopped_with_a_purge_running_has_no_effect(scene: Scene) -> None:
    """Its purge waits for a row that the test has locked."""
    leader = scene.leader()
    scene.midway()
    waiting = (
        f"SELECT true FROM pg_stat_activity WHERE application_name = '{PURGE.decode()}' "
        "AND datname = current_database() AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(scene.outbox.database) as locking:
        some = "SELECT FROM outbox ORDER BY id DESC LIMIT 1000 FOR UPDATE SKIP LOCKED"
        scene.wait_until(lambda: locking.execute(some).rowcount > 0)
        scene.wait_until(lambda: scene.outbox.query(waiting) == [(True,)])
        os.kill(leader.popen.pid, signal.SIGSTOP)
        scene.is_amid()
        scene.leader()
    scene.midway()
    since = go_on(leader)
    scene.next_event(leader, "fenced", "stood_by", "error", since=since)
    scene.midway()
    scene.ends_well()


@pytest.mark.long(point="take over")
@pytest.mark.long(point="read the ledger")
@pytest.mark.parametrize("point", ["take over", "fence Kafka", "read the ledger", "begin"])
def test_a_member_that_was_stopped_while_it_took_over_has_no_effect(scene: Scene, point: str) -> None:
    """Once it goes on it may end its successor's producer, which costs that a view, and no more."""
    first = scene.leader()
    scene.midway()
    leader = scene.member(command=command(stop=point, armed=True))
    leader.wait_for("started")
    first.popen.kill()
    scene.wait_until(lambda: is_stopped(leader))
    scene.wait_until(lambda: scene.marked() > 0)  # there is something to harvest
    scene.leader()
    scene.midway()
    since = go_on(leader)
    scene.next_event(leader, "fenced", "stood_by", "view", since=since)
    scene.midway()
    scene.ends_well()


@pytest.mark.long
@pytest.mark.timed  # two that fence each other go on only if neither is late
def test_without_the_fence_of_kafka_records_come_twice(scene: Scene) -> None:
    """With one producer: what another one had sent would stay open, and hold the readers back until its time is up."""
    scene.limits = {**SHORT_SESSION, "transactional_ids": 1}
    zombie(scene, "write the ledger", without=("kafka",))
    with pytest.raises(AssertionError, match="duplicates"):
        scene.ends_well()


def witness_of_long_ago(scene: Scene, *, without: tuple[str, ...] = ()) -> Process:
    """A leader stops before it tells what it has witnessed of the ledger. It goes on when its successor has witnessed
    more, and there is nothing more to do; then a third one leads, which is returned.
    """
    leader = scene.leader(command=command(stop="witness", without=without))
    scene.midway()
    stop(scene, leader, "witness")
    standby = scene.leader(command=command(without=without))
    for _ in range(3):  # so that the ledger says, too, that more is witnessed
        scene.next_event(standby, "progress", since=len(standby.events))
        scene.midway()
    scene.load.pot = 0
    scene.wait_until(lambda: scene.outbox.left() == 0)
    for _ in range(3):  # the last witness of all is told
        scene.next_event(standby, "progress", since=len(standby.events), in_flight=0)
    since = go_on(leader)
    scene.next_event(leader, "fenced", "stood_by", since=since)  # it has told what it had to tell before
    for member in (leader, standby):
        member.popen.kill()
        member.popen.wait()
    scene.load.pot = scene.pot
    return scene.leader()


@pytest.mark.long
def test_a_witness_of_long_ago_is_not_recorded(scene: Scene) -> None:
    witness_of_long_ago(scene)
    scene.ends_well()


@pytest.mark.long
def test_without_the_fence_of_postgres_a_witness_of_long_ago_stops_the_harvest(scene: Scene) -> None:
    """The fence row then knows less than the ledger says it did, as after a restore, and nobody can go on."""
    leader = witness_of_long_ago(scene, without=("postgres",))
    error = scene.next_event(leader, "error", since=0)
    assert "restored to an earlier time" in error["error"]
