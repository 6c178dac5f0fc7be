"""How long it takes until another leads, or the same one again, by the consumer's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from faults.processes import go_on, moment_of
from faults.returning_broker import comes_back
from faults.scene import AT_LEAST_ONCE, EXACTLY_ONCE, Scene
from support.harvesting import PATIENCE, SHORT_SESSION, Process

from timings.faults.best import best

pytestmark = pytest.mark.timed

SESSION_TIMEOUT = 6.0
HEARTBEAT_TIMEOUT = 2.0
"""The defaults."""
BACK_WITHIN = 3.0
"""Seconds. What goes by the pauses of Kafka's client takes ten."""
either_delivery = pytest.mark.long(delivery=AT_LEAST_ONCE)


def first_record_of(scene: Scene, successor: Process, since: int) -> float:
    """When the consumer saw the first record of a member that has begun to lead."""
    view = scene.next_event(successor, "view", since=since)
    return scene.reader.first_since(moment_of(view), within=PATIENCE)


def take_over(scene: Scene, end: Callable[[Process], None]) -> float:
    """How many seconds it takes until the other one of two members publishes when the one that leads is ended."""
    scene.standby()
    scene.midway()
    leader = scene.stop_the_leader()
    [standby] = [member for member in scene.running if member is not leader]
    since = len(standby.events)
    end(leader)
    ended_at = time.time()
    took = first_record_of(scene, standby, since) - ended_at
    leader.ends()
    return took


@either_delivery
def test_after_kill_the_first_record_comes_within_the_session_timeout_and_two_seconds(scene: Scene) -> None:
    scene.leader()
    best(lambda: take_over(scene, lambda leader: leader.popen.kill()), within=SESSION_TIMEOUT + 2)
    scene.ends_well()


@either_delivery
def test_after_a_clean_stop_the_first_record_comes_within_a_second(scene: Scene) -> None:
    """A successor that waits for heartbeats which don't come takes two seconds, each time."""

    def end_in_order(leader: Process) -> None:
        leader.popen.terminate()
        go_on(leader)

    scene.leader()
    best(lambda: take_over(scene, end_in_order), within=1)
    scene.ends_well()


@either_delivery
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

    away = 20 if is_long else session_timeout + 2  # none keeps its place for so long
    best(lambda: comes_back(scene, kill, away=away), within=BACK_WITHIN)
    scene.ends_well()


@either_delivery
def test_a_leader_whose_produce_hangs_lets_go_within_the_heartbeat_timeout_and_a_second(scene: Scene) -> None:
    def let_go() -> float:
        """The seconds from when the leader hears of another member until one of them is elected."""
        leader = scene.leader(proxied=True)
        scene.midway()
        scene.hits(scene.servers.to_produce.swallow(kind=scene.amid()))
        since = len(leader.events)
        newcomer = scene.member()
        stood_by = scene.next_event(leader, "stood_by", since=since)

        def elections() -> list[dict[str, Any]]:
            return [event for event in leader.events[since:] + newcomer.events if event["event"] == "elected"]

        scene.wait_until(lambda: elections() != [])
        scene.servers.to_produce.heal()
        took = min(map(moment_of, elections())) - moment_of(stood_by)
        for member in (leader, newcomer):
            member.popen.terminate()
            member.ends()
        return took

    best(let_go, within=HEARTBEAT_TIMEOUT + 1)
    scene.leader()
    scene.ends_well()


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE])
@pytest.mark.parametrize(
    "number", [None, pytest.param(1, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
def test_when_the_broker_is_back_one_of_three_members_goes_on_within_three_seconds(
    scene: Scene, number: int | None
) -> None:
    """Under a load of a thousand records a second, with the default number of producers or another."""
    scene.rate = 1_000
    scene.limits = {**scene.limits, **SHORT_SESSION} | ({} if number is None else {"transactional_ids": number})
    scene.leader()
    scene.standby()
    scene.standby()

    def kill() -> None:
        scene.servers.kafka.kill()
        scene.wait_until(lambda: scene.marked() > 0)

    away = SHORT_SESSION["session_timeout"] + 2
    best(lambda: comes_back(scene, kill, away=away), within=BACK_WITHIN)
    scene.ends_well()
