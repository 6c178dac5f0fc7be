"""For how long readers are held back when the end of a transaction comes late or never."""

from __future__ import annotations

import pytest
from faults.frames import Api
from faults.late import QUICK, LateScene
from faults.stable_offsets import Clerk
from faults.treatments import NEXT_TRANSACTION, Drop, Late, Treatment

pytestmark = pytest.mark.timed

HELD_BACK = 8.0
"""Seconds: a transaction that nobody ends would hold them back for a minute, by default."""


@pytest.mark.parametrize("treatment", [Late(NEXT_TRANSACTION), Drop()], ids=["late", "dropped"])
def test_no_reader_waits_until_a_transactions_time_is_up(late_scene: LateScene, treatment: Treatment) -> None:
    scene = late_scene
    scene.limits |= QUICK if isinstance(treatment, Drop) else {}
    scene.leader()
    clerk = Clerk(scene.stable_offsets())
    try:
        scene.midway()
        scene.struck(scene.frames.strike(Api.END, treatment, where=lambda request: bool(request.commits)))
        scene.midway(200)
        scene.ends_well()
    finally:
        clerk.close()
    assert clerk.longest <= HELD_BACK, scene.story()
