"""The real engine in a simulated world, through histories full of trouble: consumers see what was committed.

One seed is one history, the same each time. `./dev test tests/simulation --seeds 100000` lives through that many; one
that has failed is lived through again by the command that the failure prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import pytest
from simulation import digests
from simulation.kinds import KINDS, complaints_of

TESTS = Path(__file__).parents[1]
_SHARE = 25  # histories that a process is given at a time
_SHOWN = 5


@pytest.mark.parametrize("kind", KINDS)
def test_consumers_see_what_was_committed(kind: str, seeds: list[int], processes: Executor) -> None:
    chosen = seeds if len(seeds) == 1 else seeds[:: KINDS[kind].every]
    shares = [chosen[at : at + _SHARE] for at in range(0, len(chosen), _SHARE)]
    run = map if len(shares) == 1 else processes.map
    failed = [failure for share in run(partial(complaints_of, kind), shares) for failure in share]
    told = [
        f"seed {seed}: {'; '.join(complaints[:_SHOWN])}\n"
        f"  ./dev test 'tests/simulation/test_histories.py::{test_consumers_see_what_was_committed.__name__}[{kind}]'"
        f" --seed {seed}"
        for seed, complaints in failed[:_SHOWN]
    ]
    assert not failed, f"{len(failed)} of {len(chosen)} histories have gone wrong\n" + "\n".join(told)


def test_a_seed_is_the_same_history_in_each_process() -> None:
    # Sets of strings have another order there, and sets of objects mostly.
    others = {**os.environ, "PYTHONHASHSEED": "3" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    command = [sys.executable, "-m", digests.__name__]
    with subprocess.Popen(command, cwd=TESTS, env=others, stdout=subprocess.PIPE, text=True) as process:
        here = digests.digests()
        there, _ = process.communicate()
    assert json.loads(there) == here
    assert len({*here.values()}) > len(KINDS) / 2, "kinds differ"
