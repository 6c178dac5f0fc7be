"""Another history is noticed while a leader is at work, and stays noticed until an operator adopts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from simulation.checker import complaints, seen
from simulation.histories import history_errors
from simulation.kafka import LEDGER, Partition
from simulation.loop import simulate
from simulation.planted_ports import NeverHalts, TellsNoBeats
from simulation.verdicts import Verdict, verdict_of
from simulation.world import SOUND, Design, Member, World

from airflow_outbox.values.records import MarkedRecord

PURGED_UNPUBLISHED = {Verdict.PURGED_UNPUBLISHED, Verdict.FALSE_WATERMARK}
"""Records of this history are taken for those of another that were published."""


class LeaderAndWriter:
    """A leader at work, and an application that writes a record at a time."""

    def __init__(self, design: Design = SOUND) -> None:
        self.world = World(0, clusters=design.clusters)
        self.member = Member(self.world, design)
        self._written = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self._written += 1
            transaction = self.world.database.begin()
            record = MarkedRecord(transaction.draw(), "t", "k", f"v{self._written}", [], [], None)
            transaction.insert(record)
            transaction.commit()

    async def work(self) -> None:
        """Publish and purge some batches, of which Postgres is told."""
        for _ in range(5):
            self.write(10)
            await asyncio.sleep(1.5)
        assert not self.world.database.state.rows

    async def beat(self) -> None:
        """Wait until just after the leader has said that it is alive."""
        database = self.world.database
        beats = database.state.fence.beats
        while database.state.fence.beats == beats:
            await asyncio.sleep(0.01)

    async def noticed(self) -> str:
        async with asyncio.timeout(20):
            while not (errors := list(history_errors(self.member))):
                await asyncio.sleep(0.1)
        return errors[0]


def verdicts(world: World) -> set[Verdict]:
    return set(map(verdict_of, complaints(world.database, world.broker, drained=False)))


def _lose(world: World) -> None:
    world.broker.lose_ledger()
    world.database.crash()  # the leader takes over again


def _shorten(world: World) -> None:
    world.broker.partitions[LEDGER] = Partition()
    world.database.crash()


def _restore(world: World) -> None:
    world.database.restore(world.database.flushed // 2, new_timeline=False)


def _promote(world: World) -> None:
    world.database.restore(world.database.flushed, new_timeline=True)


CHANGES: dict[str, tuple[Callable[[World], None], str]] = {
    "TRUNCATE RESTART IDENTITY": (lambda world: world.database.truncate_and_restart(), "set back"),
    "a table recreated": (lambda world: world.database.recreate(), "recreated"),
    "setval": (lambda world: world.database.set_back(3), "set back"),
    "a backup restored": (_restore, "restored to an earlier time"),
    "a replica promoted": (_promote, "timeline 2"),
    "a ledger deleted": (_lose, "the ledger ends at"),
    "a ledger emptied": (_shorten, "the ledger ends at"),
}


@pytest.mark.parametrize(("change", "named"), CHANGES.values(), ids=CHANGES)
def test_another_history_is_noticed_and_nothing_moves_any_more(change: Callable[[World], None], named: str) -> None:
    async def live() -> None:
        scene = LeaderAndWriter()
        await scene.work()
        change(scene.world)
        assert named in await scene.noticed()
        deletions = [values for what, values in scene.world.database.log if what == "delete"]
        published = len(seen(scene.world.broker))
        scene.write(100)  # ids and transaction ids are beyond those published again
        Member(scene.world)
        await asyncio.sleep(30)
        assert [values for what, values in scene.world.database.log if what == "delete"] == deletions
        assert len(seen(scene.world.broker)) == published
        assert verdicts(scene.world) == set()

    simulate(live())


@pytest.mark.parametrize("design", [SOUND, Design(table=NeverHalts)], ids=["sound", "forgetful"])
def test_what_was_noticed_has_to_stay_noticed(design: Design) -> None:
    async def live() -> set[Verdict]:
        scene = LeaderAndWriter(design)
        await scene.work()
        await scene.beat()
        database = scene.world.database
        position = database.flushed
        scene.write(5)
        await asyncio.sleep(0.6)
        assert not database.state.rows
        database.restore(position, new_timeline=False)
        await scene.noticed()
        scene.write(10)  # by ids and transaction ids, nothing shows any more
        await asyncio.sleep(30)
        return verdicts(scene.world)

    assert simulate(live()) == (set() if design is SOUND else PURGED_UNPUBLISHED)


@pytest.mark.parametrize("design", [SOUND, Design(table=TellsNoBeats)], ids=["sound", "without beats and views"])
def test_a_restore_shows_by_beats_when_ids_have_overtaken_what_was_published(design: Design) -> None:
    async def live() -> set[Verdict]:
        scene = LeaderAndWriter(design)
        await scene.work()
        await scene.beat()
        database = scene.world.database
        position = database.flushed
        await scene.beat()
        scene.write(5)
        await asyncio.sleep(0.6)
        assert not database.state.rows
        database.restore(position, new_timeline=False)
        scene.write(10)
        await asyncio.sleep(30)
        if design is SOUND:
            assert "knows more of the leaders" in await scene.noticed()
        return verdicts(scene.world)

    assert simulate(live()) == (set() if design is SOUND else PURGED_UNPUBLISHED)
