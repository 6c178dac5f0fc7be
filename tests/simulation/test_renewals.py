"""Renewals: a producer's new epoch fences whoever else uses its transactional id, also a successor of its leader.

A leader's commit is answered late, so that its producer is renewed. The leader is stopped while the request for the new
epoch is on its way, and the request arrives when a successor is at work. The leader goes on, holds records that the
successor has published, has the newest epoch, and hears nothing from Postgres for some seconds. Nothing but the look at
the fence row, which a new epoch asks for, keeps it from publishing them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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
"""The requests to Kafka of a leader in mid-term; `fence` is asked of Postgres, too, but only when a term begins."""
SUCCESSION = 7.0
"""How long a successor takes to be elected and to publish, in seconds."""
_SLOW = 3.0


class Renewal:
    """Strikes whoever leads, once: it is stopped when its producer is being renewed, until `is_over`."""

    def __init__(self, world: World) -> None:
        self._late_commits = len(world.brokers)
        self._arrives_in = 0.0
        self.leader: Member | None = None
        self.was_followed = self.is_over = False
        self._world = world
        self._is_asked = False
        self._published = 0
        world.watch = self._watch

    def _watch(self, member: Member, question: str, phase: str) -> float:
        is_commit = (question, phase) == ("end", "answered")
        if is_commit and self._late_commits and self.leader in (None, member):
            self.leader = member
            self._late_commits -= 1
            return 1 + 0.8 * self._world.random.random()
        if member is not self.leader:
            return 0.0
        if self._is_asked and not self.is_over and (question, phase) == ("fence", "asked"):
            return self._arrives_in  # of another cluster
        if not self._is_asked and (question, phase) == ("fence", "asked"):
            self._is_asked = True
            loop, arrives_in = asyncio.get_running_loop(), SUCCESSION + self._world.random.random()
            self._arrives_in = arrives_in
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
    """The faults after a leader was stopped while its producer was renewed, and whether it had a successor."""
    world = World(seed, clusters=design.clusters)
    history = KINDS["exactly_once"].history(world, design, focused=True)
    history.members += [Member(world, design), Member(world, design)]
    writing = asyncio.create_task(Applications(world, transactions=150, writers=8).run())
    await asyncio.sleep(2 + world.random.random())
    renewal = Renewal(world)
    await asyncio.sleep(SUCCESSION + 10)
    world.watch = None
    await writing
    return await history.end(), renewal.was_followed


def lived(log: type[SimulatedTransactionalLog], producers: int, clusters: int) -> Iterator[tuple[list[str], bool]]:
    design = Design(transactional_log=partial(log, producers=producers), clusters=clusters)
    return (simulate(renewed(seed, design)) for seed in range(SEEDS))


@pytest.mark.parametrize(("producers", "clusters"), [(1, 1), (2, 1), (1, 2)])
def test_a_leader_that_was_replaced_publishes_nothing_by_its_newer_epoch(producers: int, clusters: int) -> None:
    outcomes = list(lived(SimulatedTransactionalLog, producers, clusters))
    assert sum(was_followed for _, was_followed in outcomes) > SEEDS / 2, "too few leaders had a successor"
    assert [complaint for found, _ in outcomes for complaint in found] == []


@pytest.mark.parametrize(("producers", "clusters"), [(1, 1), (2, 1), (1, 2)])
def test_only_the_fence_row_tells_it_that_it_was_replaced(producers: int, clusters: int) -> None:
    outcomes = lived(TrustsItsRenewal, producers, clusters)
    assert any(verdict_of(complaint) is Verdict.DOUBLED for found, _ in outcomes for complaint in found)
