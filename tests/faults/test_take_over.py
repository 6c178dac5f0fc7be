"""Another one leads: nobody duels, hangs on or holds on. How long it takes is in `tests/timings/faults`."""

from __future__ import annotations

import psycopg
import pytest
from faults.processes import go_on, stop
from faults.scene import AT_LEAST_ONCE, MARK, PURGE, Scene
from support.harvesting import CALM, SHORT_SESSION

pytestmark = pytest.mark.long(delivery=AT_LEAST_ONCE)

DUEL = 4
"""Reports of each member, one a second, in which a duel would show."""
HOLDS_ON = {"delivery_timeout": 600, "transaction_timeout": 600}
"""Limits by which a leader that holds on to what it has sent does so for longer than the test waits."""


def test_after_a_clean_stop_the_other_one_leads(scene: Scene) -> None:
    scene.leader()
    scene.standby()
    scene.midway()
    leader = scene.stop_the_leader()
    leader.popen.terminate()
    go_on(leader)
    leader.ends()
    scene.await_leader()
    scene.midway()
    scene.ends_well()


def test_a_fenced_leader_does_not_duel(scene: Scene) -> None:
    scene.limits = SHORT_SESSION
    scene.leader()
    scene.standby()
    scene.midway()
    leader = scene.stop_the_leader()
    [other] = [member for member in scene.running if member is not leader]
    scene.wait_until(lambda: scene.leading() is other)
    fencings, elections = count(scene, "fenced"), count(scene, "elected")
    since = go_on(leader)
    scene.next_event(leader, "fenced", "stood_by", since=since)
    scene.wait_until(lambda: scene.group_members() == 2)
    scene.midway()
    for member in (leader, other):
        for _ in range(DUEL):
            scene.next_event(member, "progress", since=len(member.events))
    scene.wait_until(lambda: sorted(map(scene.standing, (leader, other))) == ["leading", "standby"])
    assert scene.await_leader() is other or other.was_unseated, scene.story()
    # The fence tells a member that another one leads; in a duel it does so without an election, again and again.
    assert count(scene, "fenced") - fencings <= 2 + count(scene, "elected") - elections, scene.story()
    scene.ends_well()


def count(scene: Scene, event: str) -> int:
    return sum(each["event"] == event for member in scene.members for each in member.events)


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


@pytest.mark.long
def test_a_leader_that_cant_reach_postgres_resigns_and_comes_back_as_standby(scene: Scene) -> None:
    scene.limits = CALM
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


def test_a_leader_whose_produce_hangs_lets_go(scene: Scene) -> None:
    """It waits no longer for the answer once the group has another member."""
    scene.limits = HOLDS_ON
    leader = scene.leader(proxied=True)
    scene.midway()
    scene.hits(scene.servers.to_produce.swallow(kind=scene.amid()))
    since = len(leader.events)
    newcomer = scene.member()
    scene.next_event(leader, "stood_by", since=since)
    scene.is_amid()
    scene.wait_until(lambda: any(event["event"] == "elected" for event in leader.events[since:] + newcomer.events))
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
        scene.leader()
        still = f"SELECT FROM pg_stat_activity WHERE pid = {backend}"
        scene.wait_until(lambda: scene.outbox.query(still) == [])
    go_on(leader)
    scene.ends_well()
