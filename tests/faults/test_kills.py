"""Leaders that are killed again and again, at random moments."""

from __future__ import annotations

import random
import time

import pytest
from faults.scene import EXACTLY_ONCE, Scene
from support.harvesting import SHORT_SESSION


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE])
def test_kill_9_at_random_moments(scene: Scene, is_long: bool, seed: int) -> None:
    kills, scene.records = (20, 200_000) if is_long else (4, 60_000)
    scene.limits, scene.pot = SHORT_SESSION, 20_000
    moments = random.Random(seed)
    scene.leader()
    scene.standby()
    scene.midway(scene.records // (kills + 2))
    hits = 0
    while hits < kills:
        time.sleep(moments.uniform(0, 0.5))
        leader = scene.await_leader()  # a busy machine may have unseated it
        leader.popen.kill()
        leader.popen.wait()
        hits += scene.marked() > 0  # it counts when something was in flight, as nearly always
        scene.await_leader()
        scene.member()
        scene.midway(scene.records // (kills + 2))
    scene.ends_well()
    assert scene.load.written >= scene.records
