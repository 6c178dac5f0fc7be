"""Which histories to simulate, and on how many processors."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest

_EACH_TIME, _OF_COMMIT = 90, 30  # histories


@pytest.fixture(scope="session")
def processes() -> Iterator[Executor]:
    """As many processes as there are processors for this process of the tests, one at least.

    They let tests go first that wait for servers, for some of these measure time.
    """
    number = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, mp_context=spawning, initializer=_begin) as executor:
        yield executor


def _begin() -> None:
    os.nice(10)
    gc.set_threshold(50_000)  # a fifth of a history's time would go into looks for garbage that is not there


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> list[int]:
    """The seeds that were asked for: one by `--seed`, or so many by `--seeds`, from `--first` on.

    Without these, they are the same at each commit, and some of this commit alone, which the first line names.
    """
    seed, first, number = (request.config.getoption(option) for option in ("--seed", "--first", "--seeds"))
    if seed is not None:
        return [seed]
    if (first, number) == (None, None):
        of_commit = request.config.option.first_of_commit
        return [*range(_EACH_TIME), *range(of_commit, of_commit + _OF_COMMIT)]
    first, number = first or 0, number or _EACH_TIME
    return list(range(first, first + number))
