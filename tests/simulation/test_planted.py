"""The simulator finds what it is there to find: every planted bug, within so many histories, and for what it breaks."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial

import pytest
from simulation.bugs import BUGS, Bug
from simulation.histories import simulated
from simulation.kinds import KINDS
from simulation.verdicts import verdict_of

SEEDS = 4000
"""Within how many histories every bug is found. Most are found within ten."""
RARE = {
    "a fenced member takes over again": 114,
    "a new layout goes on from the first shard's watermark": 52,
    "a ticket of before an adoption is refused by an old look": 24,
    "a view outlives its membership": 32,
    "a window's upper bound is dropped": 23,
    "an id is left alone whose commit is uncertain": 69,
    "an uncertain purge is taken for done": 144,
    "ids count as given up that are in use": 33,
    "other histories are not looked for": 148,
    "others' ids that can't be fenced are left alone": 33,
    "purges are by id only": 20,
    "records of another table are published": 44,
    "the fence row is ignored": 24,
    "the ledger is read before older producers are fenced": 60,
    "the ledger is written outside any transaction": 29,
    "what a cut has left of a batch is purged": 976,
    "what is published beyond doubt is not purged": 136,
    "what is visible is taken for durable": 24,
    "what was heard on a lost connection is believed": 45,
    "a batch is joined by its number": 172,
    "a cluster counts whose producers are not fenced": 20,
    "an accepted cluster counts too early": 252,
    "ledgers are read before any cluster's producers are fenced": 368,
    "what can be read on the primary counts as published": 20,
    "what recovery commits is taken for the term's": 412,
    "what a promoted cluster got is taken for accounted": 85,
    "what a promoted cluster lacks is not completed there": 1852,
}
"""The seeds from which on these are searched. When histories change, the first that shows one is elsewhere: then the
search takes longer again.
"""
_AT_ONCE = 4  # histories that the processes are given at a time


def test_every_bug_names_the_verdicts_of_which_one_has_to_find_it() -> None:
    assert [bug.name for bug in BUGS if not bug.found_by] == []
    assert RARE.keys() <= {bug.name for bug in BUGS}
    assert len(BUGS) >= 100, "docs/how-it-is-tested.md says so"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug, processes: Executor) -> None:
    first = RARE.get(bug.name, 0)
    looks = (range(at, at + _AT_ONCE) for at in range(first, first + SEEDS, _AT_ONCE))
    verdicts = " or ".join(bug.found_by)
    assert any(any(processes.map(partial(is_found, bug.name), seeds)) for seeds in looks), (
        f"{bug.name}: not found by '{verdicts}'"
    )


def is_found(name: str, seed: int) -> bool:
    """Whether this history shows a bug, by a complaint of the right verdict."""
    [bug] = [bug for bug in BUGS if bug.name == name]
    with bug.planted():
        complaints = simulated(seed, bug.design, KINDS[bug.kind].history).complaints
    return not set(bug.found_by).isdisjoint(map(verdict_of, complaints))
