"""How long it takes until records come out again after the primary cluster was lost, from the operator's command on."""

from __future__ import annotations

import pytest
from faults.regions import Region, Regions

pytestmark = pytest.mark.timed

GOES_ON_WITHIN = 10.0
"""Seconds. The time-outs of a cluster that is lost would add a minute."""


def test_within_ten_seconds(regional_scene: Regions, regions_of_two: dict[str, Region]) -> None:
    regional_scene.leader()
    regional_scene.start().wait_for("progress", standing="standby")
    took = regional_scene.loses(regions_of_two["primary"].kafka)
    regional_scene.ends_well("west")
    assert took <= GOES_ON_WITHIN
