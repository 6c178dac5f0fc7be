"""Which histories to simulate, and on how many processors."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest


@pytest.fixture(scope="session")
def processes() -> Iterator[Executor]:
    """As many processes as there are processors."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> list[int]:
    """The seeds that were asked for: one by `--seed`, or the first so many by `--seeds`."""
    seed = request.config.getoption("--seed")
    return [seed] if seed is not None else list(range(request.config.getoption("--seeds")))
