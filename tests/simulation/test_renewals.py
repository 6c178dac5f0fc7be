"""Renewals: a producer's new epoch fences whoever else uses its transactional id, also a successor of its leader.

A leader's commit is answered late, so that its producer is renewed. The leader is stopped while the request for the new
epoch is on its way, and the request arrives when a successor is at work. The leader goes on, holds records that the
successor has published, has the newest epoch, and hears nothing from Postgres for some seconds. Nothing but the look at
the fence row, which a new epoch asks for, keeps it from publishing them.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from simulation.applications import Applications
from simulation.checker import seen
from simulation.kinds import KINDS
from simulation.log import SimulatedTransactionalLog
from simulation.loop import ELSEWHERE, simulate
from simulation.planted_ports import TrustsItsRenewal
from simulation.verdicts import Verdict, verdict_of
from simulation.world import Design, Member, World

SEEDS = 25
KAFKA = ("fence", "add", "publish", "commit", "end", "stable offsets", "glimpse", "ledger")
"""What a leader in mid-term asks of Kafka; `fence` is asked of Postgres, too, but only when a term begins."""
SUCCESSION = 7.0
"""How long a successor takes to be elected and to publish, in seconds."""
_SLOW = 3.0


class Renewal:
    """Strikes whoever leads, once: it is stopped when its producer is being renewed, until `is_over`."""

    def __init__(self, world: World) -> None:
        self.leader: Member | None = None
        self.was_followed = self.is_over = False
        self._world = world
        self._is_asked = False
        self._published = 0
        world.watch = self._watch

    def _watch(self, member: Member, question: str, phase: str) -> float:
        if self.leader is None and (question, phase) == ("end", "answered"):
            self.leader = member
            return 1 + 0.8 * self._world.random.random()
        if member is not self.leader:
            return 0.0
        if not self._is_asked and (question, phase) == ("fence", "asked"):
            self._is_asked = True
            loop, arrives_in = asyncio.get_running_loop(), SUCCESSION + self._world.random.random()
            loop.call_later(0.5, self._stop, context=ELSEWHERE)
            loop.call_later(arrives_in + 0.2 * self._world.random.random(), self._go_on, context=ELSEWHERE)
            return arrives_in
        return _SLOW if self.is_over and phase == "asked" and question not in KAFKA else 0.0

    def _stop(self) -> None:
        assert self.leader is not None
        self.leader.process.stop()
        self._published = len(seen(self._world.broker))

    def _go_on(self) -> None:
        assert self.leader is not None
        self.was_followed = len(seen(self._world.broker)) > self._published
        self.is_over = True
        self.leader.process.go_on()


async def renewed(seed: int, design: Design) -> tuple[list[str], bool]:
    """What is wrong after a leader was stopped while its producer was renewed, and whether it had a successor."""
    world = World(seed)
    history = KINDS["exactly_once"].history(world, design, focused=True)
    history.members += [Member(world, design), Member(world, design)]
    writing = asyncio.create_task(Applications(world, transactions=150, writers=8).run())
    await asyncio.sleep(2 + world.random.random())
    renewal = Renewal(world)
    await asyncio.sleep(SUCCESSION + 10)
    world.watch = None
    await writing
    return await history.end(), renewal.was_followed


def complaints(log: type[SimulatedTransactionalLog], producers: int) -> list[str]:
    design = Design(transactional_log=partial(log, producers=producers))
    outcomes = [simulate(renewed(seed, design)) for seed in range(SEEDS)]
    assert sum(was_followed for _, was_followed in outcomes) > SEEDS / 2, "too few leaders had a successor"
    return [complaint for found, _ in outcomes for complaint in found]


@pytest.mark.parametrize("producers", [1, 2])
def test_a_leader_that_was_replaced_publishes_nothing_by_its_newer_epoch(producers: int) -> None:
    assert complaints(SimulatedTransactionalLog, producers) == []


@pytest.mark.parametrize("producers", [1, 2])
def test_only_the_fence_row_tells_it_that_it_was_replaced(producers: int) -> None:
    assert Verdict.DOUBLED in set(map(verdict_of, complaints(TrustsItsRenewal, producers)))
