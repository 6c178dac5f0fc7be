"""A member that is asked to stand by finishes what it has sent, and takes over no more until it is elected again."""

from __future__ import annotations

import asyncio
import random

from simulation.loop import simulate
from simulation.ports import World
from simulation.test_harvesting import Member, write


async def rebalanced(seed: int, *, trouble: float) -> list[Member]:
    """Two members under load, between whom the role goes to and fro."""
    world = World(random.Random(seed), trouble=trouble, latency=0.1)
    members = [Member(world), Member(world)]
    writing = asyncio.create_task(write(world))
    for _ in range(20):
        await asyncio.sleep(world.random.random())
        world.rebalance()
    await writing
    world.trouble = 0.0
    for member in members:
        await member.stop()
    return members


def test_nobody_takes_over_who_was_asked_to_stand_by(seed: int) -> None:
    for member in simulate(rebalanced(seed, trouble=0.1)):
        elected = False
        for event, fields in member.events:
            if event in ("elected", "stood_by"):
                elected = event == "elected"
            assert event != "view" or elected, f"a take-over without an election: {fields}"


def test_standing_by_is_no_failure(seed: int) -> None:
    for member in simulate(rebalanced(seed, trouble=0.0)):
        assert [fields for event, fields in member.events if event == "error"] == []
