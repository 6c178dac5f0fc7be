"""A record that only the broker refuses is found and parked by name, within few terms, and everything else flows on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from simulation.checker import complaints
from simulation.loop import simulate
from simulation.world import Design, Member, World

from airflow_outbox.harvest.protocol.refused_topics import MOST_REFUSALS
from airflow_outbox.values.records import MarkedRecord
from airflow_outbox.values.refusals import Cause, Refusal

DESIGNS = {
    "single records": Design(),
    "whole transactions": Design(atomic=True),
    "at least once": Design(delivery="at_least_once"),
}
TERMS = 8
"""The most that a refusal may cost: each one narrows."""


def record(number: int, key: str | None = None, topic: str = "t") -> MarkedRecord:
    return MarkedRecord(number, topic, key or f"k{number}", f"v{number}", [], [], None)


@dataclass(slots=True)
class RefusedMember:
    """One member at work, while Kafka refuses these values without saying which ones."""

    world: World
    member: Member

    @classmethod
    def of(cls, design: Design, *refused: str) -> RefusedMember:
        world = World(1)
        world.broker.untold.update(refused)
        return cls(world, Member(world, design))

    @property
    def terms(self) -> int:
        return sum(event.name == "view" for event in self.member.events)

    @property
    def parked(self) -> dict[int, bool]:
        """The ids of what waits, and whether each was refused itself."""
        return {
            row.record.id: row.refusal is not None
            for row in self.world.database.state.parked.values()
            if not row.discarded
        }

    async def settles(self, *, within: float) -> None:
        """Wait until nothing is left in the outbox, and no request is unanswered."""
        state = self.world.database.state
        async with asyncio.timeout(within):
            while state.rows or any(row.requested for row in state.parked.values()):
                await asyncio.sleep(0.1)
                state = self.world.database.state


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("size", [1, 2, 30])
def test_one_refused_record_of_a_transaction(design: Design, size: int) -> None:
    """It is the only one that has a reason; in an atomic outbox, the rest of its transaction waits for it."""

    async def live() -> None:
        scene = RefusedMember.of(design, "v1")
        scene.world.database.stash(*(record(number) for number in range(1, size + 1)))
        for number in range(size + 1, size + 6):
            scene.world.database.stash(record(number))
        await scene.settles(within=15)
        together = range(1, size + 1) if design.atomic else [1]
        assert scene.parked == {number: number == 1 for number in together}
        assert scene.terms <= TERMS
        await asyncio.sleep(60)
        assert scene.terms <= TERMS
        await scene.member.stop()

    simulate(live())


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_several_in_one_batch(design: Design) -> None:
    async def live() -> None:
        refused = {3, 4, 9, 10}
        scene = RefusedMember.of(design, *(f"v{number}" for number in refused))
        for number in range(1, 41):
            scene.world.database.stash(record(number))
        await scene.settles(within=30)
        assert scene.parked == dict.fromkeys(refused, True)
        assert scene.terms <= TERMS * len(refused)
        await scene.member.stop()

    simulate(live())


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_a_retry_of_several_of_which_one_is_still_refused(design: Design) -> None:
    """That one waits again, with its reason; the others are published, and the request is answered."""

    async def live() -> None:
        scene = RefusedMember.of(design, "v1", "v3")
        world = scene.world
        for number in range(1, 5):
            world.database.stash(record(number))
            await asyncio.sleep(0.3)
        await scene.settles(within=20)
        assert scene.parked == {1: True, 3: True}
        before = scene.terms
        world.broker.untold.discard("v3")
        world.database.statement("ask", tuple(world.database.state.parked), "retry")
        await scene.settles(within=20)
        assert scene.parked == {1: True}
        assert scene.terms - before <= TERMS
        await scene.member.stop()
        world.broker.untold.clear()
        assert not complaints(
            world.database, world.broker, exactly_once=design.delivery == "exactly_once", drained=False
        )

    simulate(live())


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("keys", [2, 4])
def test_a_retry_finds_a_refused_record_behind_another_in_each_of_several_keys(design: Design, keys: int) -> None:
    """Each refusal ends a term. Records found by the earlier ones are left out until all the rest is published."""

    async def live() -> None:
        first, second = range(1, keys + 1), range(keys + 1, 2 * keys + 1)
        scene = RefusedMember.of(design, *(f"v{number}" for number in second))
        world = scene.world
        world.broker.told.update((f"v{number}", Refusal(Cause.TOO_LARGE, "simulated")) for number in first)
        for number in (*first, *second):
            world.database.stash(record(number, f"k{number % keys}"))
        await scene.settles(within=20)
        assert scene.parked == {**dict.fromkeys(first, True), **dict.fromkeys(second, False)}
        world.broker.told.clear()
        before = scene.terms
        world.database.statement("ask", tuple(world.database.state.parked), "retry")
        await scene.settles(within=20 * keys)
        assert scene.parked == dict.fromkeys(second, True)
        assert scene.terms - before <= TERMS * keys
        world.broker.untold.clear()
        world.database.statement("ask", tuple(world.database.state.parked), "retry")
        await scene.settles(within=20)
        assert scene.parked == {}  # a new request is a new try
        await scene.member.stop()
        assert not complaints(world.database, world.broker, exactly_once=design.delivery == "exactly_once")

    simulate(live())


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_records_that_are_refused_all_the_time_cost_others_so_many_terms_a_minute_at_most(design: Design) -> None:
    """Their topics' other records come later, too; but all of them come."""

    async def live() -> None:
        scene = RefusedMember.of(design)
        world = scene.world
        for number in range(1, 481):
            if is_refused := number % 4 == 1:
                world.broker.untold.add(f"v{number}")
            topic = "sick" if is_refused or number % 4 == 3 else "sound"
            world.database.stash(record(number, topic=topic))
            await asyncio.sleep(0.25)
            late = [row.record for row in world.database.state.rows.values() if row.record.id < number - 40]
            assert not late, f"after ten seconds {late} are there"
        assert scene.terms <= 3 * MOST_REFUSALS + TERMS  # in two minutes
        assert not any(row.record.topic == "sound" for row in world.database.state.parked.values())
        assert {row.refusal.cause for row in world.database.state.parked.values() if row.refusal} == {
            Cause.UNTRIED,
            Cause.REFUSED,
        }
        world.broker.untold.clear()
        async with asyncio.timeout(300):
            while parked := world.database.state.parked:
                asked = [number for number, row in parked.items() if row.waits_to_be_asked_for and not row.requested]
                if asked:
                    world.database.statement("ask", tuple(asked), "retry")
                await asyncio.sleep(1)
        await scene.member.stop()
        assert not complaints(world.database, world.broker, exactly_once=design.delivery == "exactly_once")

    simulate(live())


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_a_record_that_is_refused_with_an_unclear_error_is_condemned_when_others_pass(design: Design) -> None:
    """It is set aside at once and tried by itself. It waits for an operator only once others were published between."""

    async def live() -> None:
        scene = RefusedMember.of(design, "v5")
        world = scene.world
        world.broker.unclear.add("v5")
        for number in range(1, 41):
            world.database.stash(record(number))
        await scene.settles(within=15)
        await asyncio.sleep(300)
        [row] = world.database.state.parked.values()
        assert (row.record.id, row.refusal and row.refusal.cause) == (5, Cause.UNTRIED)
        assert scene.terms <= 5 * MOST_REFUSALS + TERMS  # in five minutes; the simulated table delays no retry
        for number in range(41, 241):
            world.database.stash(record(number))
            await asyncio.sleep(5)
            assert len(world.database.state.rows) <= 1
        [row] = world.database.state.parked.values()
        assert (row.record.id, row.refusal and row.refusal.cause) == (5, Cause.REFUSED)
        before = scene.terms
        await asyncio.sleep(1200)
        assert scene.terms == before
        await scene.member.stop()

    simulate(live())


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_unclear_errors_about_everything_leave_nothing_to_an_operator(design: Design) -> None:
    """While Kafka answers them to all that is sent, records may be set aside; then all of them are published."""

    async def live() -> None:
        scene = RefusedMember.of(design)
        world = scene.world
        for number in range(1, 201):
            world.broker.untold.add(f"v{number}")
            world.broker.unclear.add(f"v{number}")
        for number in range(1, 201):
            world.database.stash(record(number, f"k{number % 10}", topic=f"t{number % 3}"))
            await asyncio.sleep(0.5)
        world.broker.untold.clear()
        async with asyncio.timeout(900):
            while world.database.state.rows or world.database.state.parked:
                assert not any(row.waits_to_be_asked_for for row in world.database.state.parked.values())
                await asyncio.sleep(1)
        assert scene.terms <= 4 * MOST_REFUSALS + TERMS
        await scene.member.stop()
        assert not complaints(world.database, world.broker, exactly_once=design.delivery == "exactly_once")

    simulate(live())
