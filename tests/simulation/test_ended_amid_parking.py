"""A leader is killed amid parking: what it had moved, and what it had not, comes out in order, and whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import patch

from simulation import planted
from simulation.checker import complaints
from simulation.loop import simulate
from simulation.statements import Server
from simulation.verdicts import Verdict, verdict_of
from simulation.world import SOUND, Design, Member, World

from airflow_outbox.harvest import modes
from airflow_outbox.values.records import MarkedRecord
from airflow_outbox.values.refusals import Cause, Refusal

ATOMIC = Design(atomic=True)
LONGEST = 60.0
RECORDS, EVERY, REFUSED = 75, 3, 31


async def _lived(world: World, design: Design, when: Callable[[str, str], bool]) -> set[Verdict]:
    """Kill the leader at this moment, and have its successor publish everything once nothing is refused any more."""

    def watch(member: Member, question: str, phase: str) -> float:
        if when(question, phase):
            world.watch = None
            member.kill()
        return 0.0

    world.watch = watch
    state = world.database.state
    killed = Member(world, design)
    async with asyncio.timeout(LONGEST):
        while killed in world.members:
            await asyncio.sleep(0.1)
        successor = Member(world, design)
        while state.rows:
            await asyncio.sleep(0.1)
        world.broker.told.clear()
        while state.parked:
            world.database.statement("ask", tuple(state.parked), "retry")
            await asyncio.sleep(5)
    await successor.stop()
    return {*map(verdict_of, complaints(world.database, world.broker, atomic=design.atomic))}


async def _of_a_lane() -> set[Verdict]:
    """It is killed before it commits a batch that publishes a record, and parks the next one of the lane."""
    world = World(1)
    world.broker.told["v2"] = Refusal(Cause.TOO_LARGE, "simulated")
    world.database.stash(*(MarkedRecord(n, "t", "k", f"v{n}", [], [], None) for n in (1, 2)))
    return await _lived(world, SOUND, lambda question, phase: (question, phase) == ("commit", "asked"))


async def _of_a_transaction() -> set[Verdict]:
    """It is killed when the record that is refused is parked, and a part of its transaction is not."""
    world = World(1)
    world.broker.told[f"v{REFUSED}"] = Refusal(Cause.TOO_LARGE, "simulated")
    database = world.database
    long = database.begin()
    for number in range(1, RECORDS + 1):
        transaction = database.begin() if number % EVERY != 1 else long
        transaction.insert(MarkedRecord(transaction.draw(), "t", f"k{number}", f"v{number}", [], [], None))
        if transaction is not long:
            transaction.commit()
    long.commit()

    def is_parked_in_part(question: str, phase: str) -> bool:
        parked = {row.record.value for row in database.state.parked.values()}
        return f"v{REFUSED}" in parked and any(
            row.transaction_id == long.transaction_id for row in database.state.rows.values()
        )

    return await _lived(world, ATOMIC, is_parked_in_part)


def test_a_lane_stays_in_order() -> None:
    assert simulate(_of_a_lane()) == set()
    with patch.object(modes, "ExactlyOnceTerm", planted.ParksFirst):
        assert Verdict.OUT_OF_ORDER in simulate(_of_a_lane())


def test_a_transaction_stays_whole() -> None:
    assert simulate(_of_a_transaction()) == set()
    with patch.object(Server, "parked_in_part", planted.nothing):
        assert Verdict.TORN in simulate(_of_a_transaction())
