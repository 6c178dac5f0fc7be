"""A parked source transaction that is longer than a batch is published whole all the same, once nothing refuses it."""

from __future__ import annotations

import asyncio

from simulation.checker import complaints
from simulation.loop import simulate
from simulation.world import LIMITS, Design, Member, World

from airflow_outbox.values.records import MarkedRecord
from airflow_outbox.values.refusals import Cause, Refusal

RECORDS = 3 * LIMITS.batch_records


async def _parked_and_retried() -> World:
    world = World(1)
    world.broker.told["v1"] = Refusal(Cause.TOO_LARGE, "simulated")
    world.database.stash(*(MarkedRecord(n, "t", f"k{n}", f"v{n}", [], [], None) for n in range(1, RECORDS + 1)))
    member = Member(world, Design(atomic=True))
    async with asyncio.timeout(60):
        while len(world.database.state.parked) < RECORDS:
            await asyncio.sleep(0.1)
    world.broker.told.clear()
    world.database.statement("ask", (1,), "retry")
    async with asyncio.timeout(60):
        while world.database.state.parked:
            await asyncio.sleep(0.1)
    await member.stop()
    return world


def test_a_parked_transaction_may_be_longer_than_a_batch() -> None:
    world = simulate(_parked_and_retried())
    assert complaints(world.database, world.broker, atomic=True) == []
