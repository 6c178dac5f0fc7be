"""Zombies: a leader is stopped for longer than its session lasts, at each moment of its work, and goes on when its
successor is at work, who is killed soon after. The two fences keep it from any effect; without either it has some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from simulation.ambush import Ambush, Moment, Strike
from simulation.applications import Applications
from simulation.kinds import KINDS
from simulation.loop import simulate
from simulation.planted_ports import FencesNobody, Unfenced
from simulation.verdicts import Verdict, verdict_of
from simulation.world import SOUND, Design, Member, World

SEEDS = 25
DELAY = 6.0
"""How long a message of a zombie may be on its way, in seconds: a successor has taken over by then."""
MOMENTS = {
    "before its read": Moment("heartbeat", "answered"),
    "between read and produce": Moment("read", "answered"),
    "while it produces": Moment("publish", "asked"),
    "before the commit": Moment("publish", "answered"),
    "between the ledger's record and the commit": Moment("commit", "answered"),
    "with a commit on its way": Moment("end", "asked"),
    "while the next batch is sent and this one is committed": Moment("publish", "asked", besides="end"),
    "while the next batch is there and this one is committed": Moment("publish", "answered", besides="end"),
    "between commit and purge": Moment("end", "answered"),
    "with a purge on its way": Moment("purge_published", "asked"),
    "between purge and witness": Moment("purge_published", "answered"),
    "with a heartbeat on its way": Moment("heartbeat", "asked"),
}
UNTIL = (
    Moment("begin", "asked"),
    Moment("read", "answered"),
    Moment("publish", "asked"),
    Moment("heartbeat", "answered"),
)


async def stopped(seed: int, moment: Moment, design: Design) -> tuple[list[str], bool]:
    """The faults after a leader was stopped, and whether it was."""
    world = World(seed)
    history = KINDS["exactly_once"].history(world, design, focused=True)
    history.members += [Member(world, design), Member(world, design)]
    writing = asyncio.create_task(Applications(world, transactions=60).run())
    await asyncio.sleep(2 + world.random.random())
    ambush = Ambush(
        world,
        at=moment,
        strike=Strike.STOP,
        until=world.random.choice(UNTIL),
        longest=15,
        delay=world.random.choice((0.0, DELAY)) if moment.phase == "asked" else 0.0,
    )
    waiting = 0.0
    while ambush.victim is None and waiting < 10:
        waiting += 0.05
        await asyncio.sleep(0.05)
    was_hit = ambush.victim is not None
    await asyncio.sleep(DELAY + world.random.random())
    for member in [member for member in world.members if member is not ambush.victim]:  # what it has left must do, too
        member.kill()
    history.members += [Member(world, design), Member(world, design)]
    await asyncio.sleep(10)
    ambush.call_off()
    await writing
    return await history.end(), was_hit


def lived(moment: Moment, design: Design) -> Iterator[tuple[list[str], bool]]:
    return (simulate(stopped(seed, moment, design)) for seed in range(SEEDS))


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_zombie_has_no_effect(moment: Moment) -> None:
    outcomes = list(lived(moment, SOUND))
    assert sum(was_hit for _, was_hit in outcomes) > SEEDS / 3, "too few leaders were stopped for this to mean anything"
    assert [complaint for found, _ in outcomes for complaint in found] == []


@pytest.mark.parametrize(
    ("design", "verdict"),
    [
        (Design(table=Unfenced), Verdict.FALSE_WATERMARK),
        (Design(transactional_log=FencesNobody), Verdict.DOUBLED),
    ],
    ids=["Postgres", "Kafka"],
)
def test_each_fence_is_needed(design: Design, verdict: Verdict) -> None:
    outcomes = (outcome for moment in MOMENTS.values() for outcome in lived(moment, design))
    assert any(verdict_of(complaint) is verdict for found, _ in outcomes for complaint in found)
