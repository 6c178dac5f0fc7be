"""A layout whose writer was stopped, and was followed by another leader since, is not written any more."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from simulation.kinds import KINDS
from simulation.loop import simulate
from simulation.planted_shards import looks_at_no_views
from simulation.sharded import ManyShards
from simulation.statements import Server
from simulation.verdicts import Verdict, verdict_of
from simulation.world import Member, World

from airflow_outbox.values.layout import Layout

SEEDS = 2
LATE = 7.0
"""Seconds that the layout is on its way: another member leads all shards by then."""


async def _lived(seed: int) -> tuple[set[Verdict], bool]:
    """The faults, and whether another member led when the layout came."""
    world, design = World(seed), KINDS["sharded"].design
    history = ManyShards(world, design, focused=True)
    database = world.database
    views = []

    def watch(member: Member, question: str, phase: str) -> float:
        if (question, phase) != ("write_layout", "asked"):
            return 0.0
        world.watch = None
        member.process.stop()
        layout = database.state.layout
        database.statement("ask_layout", Layout(layout.number, layout.shards, None))
        views.append(database.state.fence.view)
        return LATE

    world.watch = watch
    history.members += [Member(world, design), Member(world, design)]
    writing = asyncio.create_task(history.applications.run())
    await asyncio.sleep(4)
    layout = database.state.layout
    database.statement("ask_layout", Layout(layout.number, layout.shards, 2))
    async with asyncio.timeout(30):
        while not views:
            await asyncio.sleep(0.1)
    history.applications.write_at_once(200)
    await asyncio.sleep(LATE - 1)
    was_followed = database.state.fence.view != views[0]
    for _ in range(20):
        history.applications.write_at_once(20)
        await asyncio.sleep(0.1)
    for member in world.members:
        if member.process.stopped:
            member.process.go_on()
    await writing
    return {*map(verdict_of, await history.end())}, was_followed


def _found() -> set[Verdict]:
    lived = [simulate(_lived(seed)) for seed in range(SEEDS)]
    assert all(was_followed for _, was_followed in lived)
    return set().union(*(found for found, _ in lived))


def test_it_is_written_only_under_the_views_that_were_taken_over() -> None:
    assert _found() == set()
    with patch.object(Server, "require_views", looks_at_no_views):
        assert Verdict.DOUBLED in _found()
