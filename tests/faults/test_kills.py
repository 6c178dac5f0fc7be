"""Leaders that are killed again and again, at random moments."""

from __future__ import annotations

import random
import time

import pytest
from faults.scene import EXACTLY_ONCE, Scene
from support.harvesting import SHORT_SESSION, Process


def leader_of(scene: Scene) -> Process | None:
    """The member whose view the fence row names; None when it is one that has ended."""
    [(member,)] = scene.outbox.query("SELECT member FROM outbox_shard")
    running = {process.popen.pid: process for process in scene.members if process.popen.poll() is None}
    return running.get(int(member.rpartition(":")[2]))


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE])
def test_kill_9_at_random_moments(scene: Scene, is_long: bool) -> None:
    kills, scene.records = (20, 200_000) if is_long else (4, 60_000)
    scene.limits, scene.pot = SHORT_SESSION, 20_000
    moments = random.Random()
    scene.leader()
    scene.standby()
    scene.midway(scene.records // (kills + 2))
    hits = 0
    while hits < kills:
        time.sleep(moments.uniform(0, 0.5))
        leader = leader_of(scene)
        assert leader is not None, scene.story()
        leader.popen.kill()
        leader.popen.wait()
        hits += scene.marked() > 0  # it counts when something was in flight, as nearly always
        scene.wait_until(lambda: leader_of(scene) is not None)
        scene.member()
        scene.midway(scene.records // (kills + 2))
    scene.ends_well()
    assert scene.load.written >= scene.records
