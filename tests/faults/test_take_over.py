"""How long it takes until another leads, by the consumer's clock; and that nobody duels, hangs on or holds on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import psycopg
import pytest
from faults.processes import go_on, moment_of, stop
from faults.returning_broker import comes_back_soon
from faults.scene import AT_LEAST_ONCE, MARK, PURGE, Scene
from support.harvesting import BUSY, PATIENCE, SHORT_SESSION, Process

pytestmark = pytest.mark.long(delivery=AT_LEAST_ONCE)

# The defaults.
SESSION_TIMEOUT = 6.0
HEARTBEAT_TIMEOUT = 2.0
SLACK = 10.0
"""Seconds that a busy machine may add, where a leader that holds on would take a minute: until a record is given up."""
TRIES = 3
"""Times that a take-over is measured, at most: a busy machine only adds to what it takes."""


def first_record_of(scene: Scene, successor: Process, since: int) -> float:
    """When the consumer saw the first record of a member that has begun to lead."""
    view = scene.next_event(successor, "view", since=since)
    return scene.reader.first_since(moment_of(view), within=PATIENCE)


def take_overs(scene: Scene, end: Callable[[Process], None], *, within: float) -> list[float]:
    """How many seconds it takes each time until the other one of two members publishes when the one that leads is
    ended: until it takes no longer than `within`, or three times.
    """
    scene.leader()
    took: list[float] = []
    while len(took) < TRIES and min(took, default=math.inf) > within:
        scene.standby()
        scene.midway()
        leader = scene.stop_the_leader()
        [standby] = [member for member in scene.running if member is not leader]
        since = len(standby.events)
        end(leader)
        ended_at = time.time()
        took.append(first_record_of(scene, standby, since) - ended_at)
        leader.ends()
    print(f"{took=}")
    return took


@pytest.mark.timed
def test_after_kill_the_first_record_comes_within_the_session_timeout_and_two_seconds(scene: Scene) -> None:
    within = SESSION_TIMEOUT + 2 + BUSY
    took = take_overs(scene, lambda leader: leader.popen.kill(), within=within)
    assert min(took) <= within, took
    scene.ends_well()


@pytest.mark.timed
def test_after_a_clean_stop_the_first_record_comes_within_a_second(scene: Scene) -> None:
    """A successor that waits for heartbeats which don't come takes two seconds, each time."""

    def end_in_order(leader: Process) -> None:
        leader.popen.terminate()
        go_on(leader)

    took = take_overs(scene, end_in_order, within=1.5)
    assert min(took) <= 1.5, took
    scene.ends_well()


@pytest.mark.timed
@pytest.mark.parametrize(
    "session_timeout", [pytest.param(SESSION_TIMEOUT / 2, marks=pytest.mark.long), SESSION_TIMEOUT]
)
def test_when_the_broker_is_back_the_first_record_comes_within_three_seconds(
    scene: Scene, is_long: bool, session_timeout: float
) -> None:
    leader = scene.leader(limits={"session_timeout": session_timeout})

    def kill() -> None:
        scene.stop_in_flight(leader)
        scene.servers.kafka.kill()
        go_on(leader)

    comes_back_soon(scene, kill, away=20 if is_long else session_timeout + 2)  # none keeps its place for so long
    scene.ends_well()


@pytest.mark.timed
def test_a_fenced_leader_does_not_duel(scene: Scene) -> None:
    scene.limits = SHORT_SESSION
    scene.leader()
    scene.standby()
    scene.midway()
    leader = scene.stop_the_leader()
    [other] = [member for member in scene.running if member is not leader]
    scene.wait_until(lambda: scene.leading() is other)
    fencings = fencings_of(scene)
    since = go_on(leader)
    scene.next_event(leader, "fenced", "stood_by", since=since)
    scene.wait_until(lambda: scene.group_members() == 2)
    scene.midway()
    time.sleep(2 * HEARTBEAT_TIMEOUT)  # as long as a duel would take to show
    scene.wait_until(lambda: sorted(map(scene.standing, (leader, other))) == ["leading", "standby"])
    assert scene.await_leader() is other or other.was_unseated, scene.story()
    assert fencings_of(scene) - fencings <= 2, scene.story()
    scene.ends_well()


def fencings_of(scene: Scene) -> int:
    """How often a member was told by the fence that another one leads."""
    return sum(event["event"] == "fenced" for member in scene.members for event in member.events)


def test_a_lone_leader_that_was_stopped_for_long_leads_again(scene: Scene) -> None:
    scene.limits = SHORT_SESSION
    leader = scene.leader()
    scene.midway()
    scene.stop_in_flight(leader)
    scene.wait_until(lambda: scene.group_members() == 0)
    since = go_on(leader)
    stood_by = scene.next_event(leader, "stood_by", since=since)
    assert leader.was_unseated, f"it does not know why: {stood_by}"
    scene.next_event(leader, "view", since=since)
    scene.ends_well()


@pytest.mark.timed
@pytest.mark.long
def test_a_leader_that_cant_reach_postgres_resigns_and_comes_back_as_standby(scene: Scene) -> None:
    leader = scene.leader(proxied=True)
    standby = scene.standby()
    scene.midway()
    since = len(standby.events)
    scene.hits(scene.servers.to_postgres.swallow(MARK, kind=scene.amid()))
    scene.servers.to_postgres.swallow()
    leader.wait_for("resigned")
    scene.next_event(standby, "view", since=since)
    scene.midway()
    assert not [event for event in leader.events if event["event"] == "rejoined"]
    scene.servers.to_postgres.heal()
    views = scene.views()
    leader.wait_for("rejoined")
    scene.wait_until(lambda: scene.group_members() == 2)
    scene.midway()
    assert scene.views() - views <= 1, scene.story()
    assert scene.standing(leader) == "standby", scene.story()
    scene.ends_well()


@pytest.mark.timed
def test_a_leader_whose_produce_hangs_lets_go_in_time(scene: Scene) -> None:
    leader = scene.leader(proxied=True)
    scene.midway()
    scene.hits(scene.servers.to_produce.swallow(kind=scene.amid()))
    since = len(leader.events)
    newcomer = scene.member()
    stood_by = scene.next_event(leader, "stood_by", since=since)
    scene.was_in_flight()
    scene.wait_until(lambda: any(event["event"] == "elected" for event in leader.events[since:] + newcomer.events))
    elected = next(event for event in leader.events[since:] + newcomer.events if event["event"] == "elected")
    assert moment_of(elected) - moment_of(stood_by) <= HEARTBEAT_TIMEOUT + SLACK
    scene.servers.to_produce.heal()
    scene.ends_well()


def test_a_stopped_leader_that_holds_the_fence_loses_its_backend(scene: Scene) -> None:
    """Its mark, or its purge where none is marked, waits for a row that the test has locked, and holds the fence row
    meanwhile.
    """
    purpose = PURGE if scene.is_exactly_once else MARK
    scene.limits = SHORT_SESSION
    leader = scene.leader(limits={**SHORT_SESSION, "max_in_flight_records": 1000, "mark_records": 500})
    scene.midway()
    waiting = (
        f"SELECT pid FROM pg_stat_activity WHERE application_name = '{purpose.decode()}' "
        "AND datname = current_database() AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(scene.outbox.database) as locking:

        def some_are_locked() -> bool:
            """Rows that no leader has marked, so that it comes upon them; it may have marked all that there are."""
            unmarked = "SELECT FROM outbox WHERE leader_id IS NULL ORDER BY id DESC LIMIT 1000 FOR UPDATE SKIP LOCKED"
            return locking.execute(unmarked).rowcount > 0

        scene.wait_until(some_are_locked)
        scene.wait_until(lambda: len(scene.outbox.query(waiting)) == 1)
        stop(leader)
        [(backend,)] = scene.outbox.query(waiting)
        assert scene.outbox.query("SELECT FROM outbox_shard FOR UPDATE SKIP LOCKED") == [], "the fence is not held"
        scene.was_in_flight()
        scene.leader()
        still = f"SELECT FROM pg_stat_activity WHERE pid = {backend}"
        scene.wait_until(lambda: scene.outbox.query(still) == [])
    go_on(leader)
    scene.ends_well()
