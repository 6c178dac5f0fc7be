"""A cluster counts again in all shards of an outbox, and holds none of them up while it can't."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from simulation.checker import seen
from simulation.kafka import Broker, Partition, ledger_of
from simulation.loop import simulate
from simulation.promotions import Promotion
from simulation.test_other_histories import LeaderAndWriter
from simulation.world import Design, Member, World

from airflow_outbox.errors import FencedError
from airflow_outbox.values.fence import PRIMARY, AttachHow, LedgerRow
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.records import MarkedRecord

SHARDS = 2
BACKUP, OTHER = "backup 1", "backup 2"


class ManyKeys(LeaderAndWriter):
    """Each shard gets records."""

    def write(self, count: int) -> None:
        for _ in range(count):
            self._written += 1
            transaction = self.world.database.begin()
            key, value = f"k{self._written % 20}", f"v{self._written}"
            transaction.insert(MarkedRecord(transaction.draw(), "t", key, value, [], [], None))
            transaction.commit()


async def _reshard(world: World, shards: int) -> None:
    layout = world.database.state.layout
    world.database.statement("ask_layout", Layout(layout.number, layout.shards, shards))
    async with asyncio.timeout(60):
        while world.database.state.layout.shards != shards:
            await asyncio.sleep(0.2)


async def _two_shards(design: Design) -> ManyKeys:
    scene = ManyKeys(design)
    await _reshard(scene.world, SHARDS)
    await scene.work()
    assert all(row.witness.batch for row in scene.world.database.state.fences.values())
    return scene


async def _all_get(scene: ManyKeys) -> None:
    """What is written now comes to all clusters."""
    world = scene.world
    before = [len(seen(broker)) for broker in world.brokers.values()]
    scene.write(40)
    await asyncio.sleep(15)
    assert world.database.state.fence.halted is None
    assert not world.database.state.rows
    assert [len(seen(broker)) for broker in world.brokers.values()] == [count + 40 for count in before]


async def _detach(world: World) -> None:
    row = world.database.state.fence
    world.server.write_membership(PRIMARY, [cluster for cluster in row.backups if cluster != BACKUP])
    await asyncio.sleep(5)


def _ask(world: World, how: AttachHow | None = None, *, cluster: str = BACKUP) -> None:
    world.server.set_fence(replace(world.database.state.fence, attach=cluster, attach_how=how))


def _make_again(broker: Broker) -> None:
    broker.lose_ledger()
    broker.partitions |= {ledger_of(shard): Partition() for shard in range(SHARDS)}


async def _is_over(world: World) -> None:
    async with asyncio.timeout(60):
        while world.database.state.fence.attach is not None:
            await asyncio.sleep(0.2)


def test_a_cluster_that_begins_empty_counts_in_a_later_layout_with_more_shards() -> None:
    async def live() -> None:
        scene = await _two_shards(Design(clusters=2, shards=1))
        world = scene.world
        await _reshard(world, 1)
        await scene.work()
        await _detach(world)
        _make_again(world.brokers[BACKUP])
        _ask(world, "reset")
        await _is_over(world)
        assert [*world.database.state.fence.backups] == [BACKUP]
        await _reshard(world, SHARDS)
        await _all_get(scene)

    simulate(live())


def test_a_cluster_that_is_promoted_with_losses_goes_on_in_the_shards_of_earlier_layouts() -> None:
    async def live() -> None:
        design = Design(clusters=2, shards=1)
        scene = await _two_shards(design)
        world = scene.world
        await _reshard(world, 1)
        await scene.work()
        await _detach(world)
        _make_again(world.brokers[BACKUP])
        for shard, row in world.database.state.fences.items():  # as if it had been added only now
            world.server.set_fence(replace(row, owed={BACKUP: LedgerRow()}), shard)
        ends = {shard: row.witness.batch for shard, row in world.database.state.fences.items()}
        world.broker.is_up = False
        async with asyncio.timeout(60):
            while world.database.state.fence.primary != BACKUP:
                with contextlib.suppress(FencedError):  # the old leader was elected again: the command is given again
                    await Promotion(world, design, BACKUP, accept_loss=True).running
                await asyncio.sleep(1)
        rows = world.database.state.fences
        assert {shard: row.witness.batch for shard, row in rows.items()} == ends
        world.broker.is_up = True
        _make_again(world.broker)
        _ask(world, "reset", cluster=PRIMARY)
        await _is_over(world)
        assert [*world.database.state.fence.backups] == [PRIMARY]
        await _reshard(world, SHARDS)
        await _all_get(scene)

    simulate(live())


def test_nobody_waits_for_a_cluster_while_one_that_counts_is_away() -> None:
    async def live() -> None:
        scene = await _two_shards(Design(clusters=3, shards=1))
        world = scene.world
        await _detach(world)
        scene.write(20)
        await asyncio.sleep(5)
        _ask(world)
        async with asyncio.timeout(60):
            while not world.database.state.fence.attaches:
                await asyncio.sleep(0.001)
        world.brokers[OTHER].is_up = False
        await _is_over(world)
        assert f"cluster {OTHER}: " in world.database.refusals[-1]
        world.brokers[OTHER].is_up = True
        scene.write(20)
        await asyncio.sleep(15)
        assert not world.database.state.rows
        assert all(row.is_led for row in world.database.state.fences.values())

    simulate(live())


def test_a_cluster_that_another_shard_refuses_as_it_is_about_to_count_holds_nobody_up() -> None:
    async def live() -> None:
        scene = await _two_shards(Design(clusters=2, shards=1))
        world = scene.world
        await _detach(world)
        scene.write(20)
        await asyncio.sleep(5)

        def refuse(_: Member, name: str, phase: str) -> float:
            if (name, phase) == ("close_attach", "asked") and not world.database.refusals:
                world.server.of(1).refuse_attach(world.database.state.fences[1].view, BACKUP, "shard 1 can't")
            return 0.0

        world.watch = refuse
        _ask(world)
        async with asyncio.timeout(60):
            while not world.database.refusals:
                await asyncio.sleep(0.2)
        scene.write(40)
        await asyncio.sleep(20)
        assert world.database.refusals == ["shard 1 can't"]
        assert [*world.database.state.fence.owed] == [BACKUP]
        assert not world.database.state.rows
        assert all(row.is_led for row in world.database.state.fences.values())

    simulate(live())


def test_a_cluster_that_counts_is_not_caught_up() -> None:
    """The request came as the membership changed. Its producers are the term's own: they must not be fenced."""

    async def live() -> None:
        scene = LeaderAndWriter(Design(clusters=3))
        await scene.work()
        world = scene.world
        await _detach(world)
        view = world.database.state.fence.view
        for cluster in (OTHER, PRIMARY):
            world.server.set_fence(replace(world.database.state.fence, attach=cluster))
            await _is_over(world)
        scene.write(20)
        await asyncio.sleep(5)
        assert world.database.refusals == ["it counts already"] * 2
        assert world.database.state.fence.view == view
        assert not world.database.state.rows

    simulate(live())
