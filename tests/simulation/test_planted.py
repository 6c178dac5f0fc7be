"""The simulator finds what it is there to find: every planted bug, within so many histories."""

from __future__ import annotations

import pytest
from simulation.histories import simulated
from simulation.kinds import KINDS
from simulation.planted import BUGS, Bug

SEEDS = 1000
"""Within how many histories every bug is found. Most are found within twenty."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    history = KINDS[bug.kind].history
    with bug.planted():
        assert any(simulated(seed, bug.design, history).complaints for seed in range(SEEDS)), f"{bug.name}: not found"
