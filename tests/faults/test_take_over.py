"""How long it takes until another leads, by the consumer's clock; and that nobody duels, hangs on or holds on."""

from __future__ import annotations

import os
import signal
import threading
import time
from statistics import median

import psycopg
import pytest
from faults.scene import AT_LEAST_ONCE, MARK, PURGE, Scene, go_on, moment_of, wait_for_the_broker
from support.harvesting import Process

pytestmark = pytest.mark.long(delivery=AT_LEAST_ONCE)

# The defaults.
SESSION_TIMEOUT = 6.0
HEARTBEAT_TIMEOUT = 2.0
SLACK = 20.0  # where time is not what is measured


def first_record_of(scene: Scene, successor: Process, since: int) -> float:
    """When the consumer saw the first record of a member that has begun to lead."""
    view = scene.next_event(successor, "view", since=since, within=SESSION_TIMEOUT + HEARTBEAT_TIMEOUT + SLACK)
    return scene.reader.first_since(moment_of(view), within=10)


@pytest.mark.alone
def test_after_kill_the_first_record_comes_within_the_session_timeout_and_two_seconds(scene: Scene) -> None:
    leader = scene.leader()
    standby = scene.standby()
    scene.midway()
    since = len(standby.events)
    scene.stop_in_flight(leader)
    leader.popen.kill()
    killed_at = time.time()
    assert first_record_of(scene, standby, since) - killed_at <= SESSION_TIMEOUT + 2
    scene.ends_well()


@pytest.mark.alone
def test_after_a_clean_stop_the_first_record_comes_within_a_second(scene: Scene) -> None:
    """By the median of three, of which each stops the one before."""
    leader = scene.leader()
    took: list[float] = []
    for _ in range(3):
        standby = scene.standby()
        scene.midway()
        since = len(standby.events)
        leader.popen.terminate()
        stopped_at = time.time()
        took.append(first_record_of(scene, standby, since) - stopped_at)
        leader.ends()
        leader = standby
    print(f"{took=}")
    assert median(took) <= 1, took
    scene.ends_well()


@pytest.mark.alone
@pytest.mark.parametrize(
    "session_timeout", [pytest.param(SESSION_TIMEOUT / 2, marks=pytest.mark.long), SESSION_TIMEOUT]
)
def test_when_the_broker_is_back_the_first_record_comes_within_three_seconds(
    scene: Scene, is_long: bool, session_timeout: float
) -> None:
    scene.leader(limits={"session_timeout": session_timeout})
    scene.midway()
    scene.servers.kafka.kill()
    scene.was_in_flight()
    time.sleep(
        20 if is_long else session_timeout + 2
    )  # longer than the members of the group keep their places by themselves
    starting = threading.Thread(target=scene.servers.kafka.start)
    starting.start()
    returned_at = wait_for_the_broker(scene.servers.kafka)
    assert scene.reader.first_since(returned_at, within=60) - returned_at <= 3, scene.story()
    starting.join()
    scene.ends_well()


@pytest.mark.alone
def test_a_fenced_leader_does_not_duel(scene: Scene) -> None:
    leader = scene.leader()
    standby = scene.standby()
    scene.midway()
    scene.stop_in_flight(leader)
    standby.wait_for("view", within=SESSION_TIMEOUT + HEARTBEAT_TIMEOUT + SLACK)
    views = scene.views()
    since = go_on(leader)
    scene.next_event(leader, "fenced", "stood_by", since=since)
    scene.wait_until(lambda: scene.group_members() == 2)
    scene.midway()
    time.sleep(2 * HEARTBEAT_TIMEOUT)  # as long as a duel would take to show
    assert scene.views() - views <= 2, scene.story()
    assert scene.standing(leader) == "standby", scene.story()
    assert scene.standing(standby) == "leading", scene.story()
    scene.ends_well()


def test_a_lone_leader_that_was_stopped_for_long_leads_again(scene: Scene) -> None:
    leader = scene.leader()
    scene.midway()
    scene.stop_in_flight(leader)
    scene.wait_until(lambda: scene.group_members() == 0, within=SESSION_TIMEOUT + SLACK)
    since = go_on(leader)
    scene.next_event(leader, "view", since=since, within=SESSION_TIMEOUT + HEARTBEAT_TIMEOUT + SLACK)
    scene.ends_well()


@pytest.mark.alone
@pytest.mark.long
def test_a_leader_that_cant_reach_postgres_resigns_and_comes_back_as_standby(scene: Scene) -> None:
    leader = scene.leader(proxied=True)
    standby = scene.standby()
    scene.midway()
    since = len(standby.events)
    scene.hits(scene.servers.to_postgres.swallow(MARK))
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


@pytest.mark.alone
def test_a_leader_whose_produce_hangs_lets_go_in_time(scene: Scene) -> None:
    leader = scene.leader(proxied=True)
    scene.midway()
    scene.hits(scene.servers.to_produce.swallow())
    since = len(leader.events)
    newcomer = scene.member()
    stood_by = scene.next_event(leader, "stood_by", since=since)
    scene.was_in_flight()
    scene.wait_until(
        lambda: any(event["event"] == "elected" for event in leader.events[since:] + newcomer.events), within=20
    )
    elected = next(event for event in leader.events[since:] + newcomer.events if event["event"] == "elected")
    assert moment_of(elected) - moment_of(stood_by) <= HEARTBEAT_TIMEOUT + 1
    scene.servers.to_produce.heal()
    scene.ends_well()


def test_a_stopped_leader_that_holds_the_fence_loses_its_backend(scene: Scene) -> None:
    """Its mark, or its purge where none is marked, waits for a row that the test has locked, and holds the fence row
    meanwhile.
    """
    purpose = PURGE if scene.is_exactly_once else MARK
    leader = scene.leader(limits={"max_in_flight_records": 1000, "mark_records": 500})
    standby = scene.standby()
    scene.midway()
    [(backend,)] = scene.outbox.query(
        f"SELECT pid FROM pg_stat_activity WHERE application_name = '{purpose.decode()}' "
        "AND datname = current_database()"
    )
    with psycopg.connect(scene.outbox.database) as locking:

        def some_are_locked() -> bool:
            """Rows that no leader has marked, so that it comes upon them; it may have marked all that there are."""
            unmarked = "SELECT FROM outbox WHERE leader_id IS NULL ORDER BY id DESC LIMIT 1000 FOR UPDATE SKIP LOCKED"
            return locking.execute(unmarked).rowcount > 0

        scene.wait_until(some_are_locked)
        waiting = f"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {backend}"
        scene.wait_until(lambda: scene.outbox.query(waiting) == [(True,)])
        os.kill(leader.popen.pid, signal.SIGSTOP)
        assert scene.outbox.query(waiting) == [(True,)]
        assert scene.outbox.query("SELECT FROM outbox_shard FOR UPDATE SKIP LOCKED") == [], "the fence is not held"
        scene.was_in_flight()
        standby.wait_for("view", within=SESSION_TIMEOUT + HEARTBEAT_TIMEOUT + SLACK)
        assert scene.outbox.query(waiting) == [], "the stopped leader's backend is still there"
    go_on(leader)
    scene.ends_well()
