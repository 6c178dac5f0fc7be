"""A leader that is frozen where its producer has to be renewed, because a commit took so long that it may have been
asked for twice.

The renewal takes the newest epoch of its transactional id, and so would fence a successor that has taken over
meanwhile. The leader must then see in Postgres that it leads no more, and send nothing of what it still holds.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
from faults import unaware
from faults.frames import Api, Request
from faults.late import LateScene
from faults.processes import go_on, is_stopped
from faults.treatments import Hold
from support.harvesting import PATIENCE, SHORT_SESSION, Process

LONG_COMMIT = 1.5
"""Seconds: more than any pause after which a request is repeated."""
SENDING = (Api.ADD_PARTITIONS, Api.PRODUCE, Api.END)


@pytest.fixture
def scene(late_scene: LateScene) -> LateScene:
    late_scene.limits = {"batch_records": 200, **SHORT_SESSION}
    return late_scene


def is_the_leaders(request: Request) -> bool:
    return request.client_id == LateScene.client_id(0)


def is_its_commit(request: Request) -> bool:
    return is_the_leaders(request) and bool(request.commits)


def another_leads(scene: LateScene, leader: Process) -> None:
    """Wait until the leader is stopped, and until a successor, which joins only then, has published."""
    scene.wait_until(lambda: is_stopped(leader))
    successor = scene.leader()
    scene.wait_until(lambda: scene.published_by(successor) > 0)


def renewals(scene: LateScene, *, since: float) -> dict[str | None, float]:
    """When the first member has renewed producers since then, by transactional id."""
    return {
        request.transactional_id: request.at
        for request in scene.frames.seen
        if is_the_leaders(request) and request.api == Api.INIT_PRODUCER_ID and request.at >= since
    }


def sends_nothing_after_a_renewal(scene: LateScene, *, since: float) -> None:
    """The first member has renewed a producer since then, and asks for no part of a transaction with it afterwards."""
    renewed = renewals(scene, since=since)
    assert renewed, f"no producer was renewed\n{scene.story()}"
    sent = [
        request
        for request in scene.frames.seen
        if is_the_leaders(request)
        and request.api in SENDING
        and request.at > renewed.get(request.transactional_id, float("inf"))
    ]
    assert not sent, f"{sent}\n{scene.story()}"


def test_a_leader_frozen_while_it_commits(scene: LateScene) -> None:
    """Its commits are committed; its successor has completed it. It has one producer, so that the failure of no
    other tells it to send nothing more.
    """
    scene.limits |= {"transactional_ids": 1}
    leader = scene.leader(command=unaware.COMMAND)
    with scene.readers_go_on():
        scene.midway()
        os.kill(leader.popen.pid, signal.SIGUSR1)
        scene.frames.on_strike = lambda: os.kill(leader.popen.pid, signal.SIGSTOP)
        fault = scene.frames.strike(Api.END, Hold(), where=is_its_commit)
        scene.wait_until(fault.struck.is_set)
        scene.frames.on_strike = lambda: None
        [strike] = fault.strikes
        strike.deliver()
        assert strike.answered.wait(PATIENCE)
        another_leads(scene, leader)
        since = go_on(leader)
        scene.wait_until(lambda: bool(renewals(scene, since=strike.request.at)))
        scene.next_event(leader, "fenced", since=since)
        leader.popen.kill()
        scene.midway()
        scene.ends_well()
    sends_nothing_after_a_renewal(scene, since=strike.request.at)


def test_a_leader_frozen_while_its_producer_is_renewed(scene: LateScene) -> None:
    """Its request for the newest epoch arrives when its successor leads: that one is fenced, and leads again. The
    records that it still holds are not sent, though nothing but the fence row tells it not to.
    """
    leader = scene.leader(command=unaware.COMMAND)
    with scene.readers_go_on():
        scene.midway()
        commit = scene.frames.strike(Api.END, Hold(), where=is_its_commit)
        scene.wait_until(commit.struck.is_set)
        os.kill(leader.popen.pid, signal.SIGUSR1)
        scene.frames.on_strike = lambda: os.kill(leader.popen.pid, signal.SIGSTOP)
        renewal = scene.frames.strike(Api.INIT_PRODUCER_ID, Hold(), where=is_the_leaders)
        time.sleep(LONG_COMMIT)
        commit.strikes[0].deliver()
        scene.wait_until(renewal.struck.is_set)
        scene.frames.on_strike = lambda: None
        another_leads(scene, leader)
        [strike] = renewal.strikes
        strike.deliver()
        assert strike.answered.wait(PATIENCE)
        since = go_on(leader)
        scene.next_event(leader, "fenced", since=since)
        leader.popen.kill()
        scene.midway()
        scene.ends_well()
    sends_nothing_after_a_renewal(scene, since=strike.request.at)
