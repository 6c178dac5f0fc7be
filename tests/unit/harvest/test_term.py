from __future__ import annotations

import asyncio

import pytest

from airflow_outbox.harvest.term import pause


@pytest.mark.parametrize("steps", range(5))
async def test_a_pause_that_is_given_up_as_it_ends_is_given_up(steps: int) -> None:
    """Python 3.11's `asyncio.wait_for` swallows a cancellation then, and the term would wait for the task for ever."""
    over = asyncio.Event()
    pausing = asyncio.create_task(pause(60, over))
    await asyncio.sleep(0)
    over.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    is_given_up = pausing.cancel()
    await asyncio.wait([pausing])
    assert pausing.cancelled() is is_given_up
