"""Which histories to simulate, and on how many processors."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest


@pytest.fixture(scope="session")
def processes() -> Iterator[Executor]:
    """As many processes as there are processors for this process of the tests, one at least.

    They let tests go first that wait for servers, for some of these measure time.
    """
    number = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, mp_context=spawning, initializer=os.nice, initargs=(10,)) as executor:
        yield executor


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> list[int]:
    """The seeds that were asked for: one by `--seed`, or the first so many by `--seeds`."""
    seed = request.config.getoption("--seed")
    return [seed] if seed is not None else list(range(request.config.getoption("--seeds")))
