"""A leader that is frozen where its producer has to be renewed, because a commit took so long that it may have been
asked for twice.

The renewal takes the newest epoch of its transactional id, and so would fence a successor that has taken over
meanwhile. The leader must then see in Postgres that it leads no more, and send nothing of what it still holds.
"""

from __future__ import annotations

import os
import signal

import pytest
from faults import unaware
from faults.frame_proxy import Delay, Hold
from faults.frames import Api, Request
from faults.late import LateScene
from faults.scene import go_on, is_stopped
from support.harvesting import Process

LONG_COMMIT = 2.5
"""Seconds: more than any pause after which a request is repeated."""
SENDING = (Api.ADD_PARTITIONS, Api.PRODUCE, Api.END)


@pytest.fixture
def scene(late_scene: LateScene) -> LateScene:
    late_scene.limits = {"batch_records": 200, "heartbeat_timeout": 1, "session_timeout": 3}
    return late_scene


def is_the_leaders(request: Request) -> bool:
    return request.client_id == LateScene.client_id(0)


def is_its_commit(request: Request) -> bool:
    return is_the_leaders(request) and bool(request.commits)


def another_leads(scene: LateScene, leader: Process, standby: Process) -> None:
    """Wait until the leader is stopped, and until its successor has published."""
    scene.wait_until(lambda: is_stopped(leader))
    standby.wait_for("view")
    scene.wait_until(lambda: scene.published_by(standby) > 0)


def sends_nothing_after_a_renewal(scene: LateScene, *, since: float) -> None:
    """The first member asks for no part of a transaction with a producer that it has renewed since then."""
    own = [request for request in scene.frames.seen if is_the_leaders(request)]
    renewed = {
        request.transactional_id: request.at
        for request in own
        if request.api == Api.INIT_PRODUCER_ID and request.at >= since
    }
    sent = [
        request
        for request in own
        if request.api in SENDING and request.at > renewed.get(request.transactional_id, float("inf"))
    ]
    assert not sent, f"{sent}\n{scene.story()}"


def test_a_leader_frozen_while_it_commits(scene: LateScene) -> None:
    """What it committed is committed; its successor has completed it."""
    leader = scene.leader()
    standby = scene.standby()
    with scene.readers_go_on():
        scene.midway()
        scene.frames.on_strike = lambda: os.kill(leader.popen.pid, signal.SIGSTOP)
        fault = scene.frames.strike(Api.END, Hold(), where=is_its_commit)
        scene.wait_until(fault.struck.is_set)
        scene.frames.on_strike = lambda: None
        [strike] = fault.strikes
        strike.deliver()
        assert strike.answered.wait(10)
        another_leads(scene, leader, standby)
        since = go_on(leader)
        scene.next_event(leader, "fenced", "stood_by", "error", since=since)
        scene.midway()
        scene.ends_well()
    sends_nothing_after_a_renewal(scene, since=strike.request.at)


def test_a_leader_frozen_while_its_producer_is_renewed(scene: LateScene) -> None:
    """Its request for the newest epoch arrives when its successor leads: that one is fenced, and leads again. What it
    still holds is not sent, though nothing but the fence row tells it not to.
    """
    leader = scene.leader(command=unaware.COMMAND)
    standby = scene.standby()
    with scene.readers_go_on():
        scene.midway()
        commit = scene.frames.strike(Api.END, Delay(LONG_COMMIT), where=is_its_commit)
        scene.wait_until(commit.struck.is_set)
        os.kill(leader.popen.pid, signal.SIGUSR1)
        scene.frames.on_strike = lambda: os.kill(leader.popen.pid, signal.SIGSTOP)
        renewal = scene.frames.strike(Api.INIT_PRODUCER_ID, Hold(), where=is_the_leaders)
        scene.wait_until(renewal.struck.is_set, within=4 * LONG_COMMIT)
        scene.frames.on_strike = lambda: None
        another_leads(scene, leader, standby)
        [strike] = renewal.strikes
        strike.deliver()
        assert strike.answered.wait(10)
        since = go_on(leader)
        scene.next_event(leader, "fenced", since=since)
        leader.popen.kill()
        scene.midway()
        scene.ends_well()
    sends_nothing_after_a_renewal(scene, since=strike.request.at)
