"""Two clusters, one of which is away, lost, or comes back as another: nothing is purged that either lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from unittest.mock import patch
from uuid import UUID

import pytest
from simulation.checker import complaints, differences_of, seen
from simulation.kafka import LEDGER, Broker, Partition
from simulation.loop import simulate
from simulation.promotions import Promotion
from simulation.test_other_histories import LeaderAndWriter
from simulation.world import Design, Member, World

from airflow_outbox.errors import FencedError
from airflow_outbox.harvest import recovery
from airflow_outbox.harvest.protocol.ledger import HEAD
from airflow_outbox.values.fence import PRIMARY, AttachHow

TWO = Design(clusters=2)
BACKUP = "backup 1"


def _lose(backup: Broker) -> None:
    backup.lose_ledger()


def _empty(backup: Broker) -> None:
    backup.partitions[LEDGER] = Partition()


def _age(backup: Broker) -> None:
    """It has only half of what it had."""
    ledger = backup.partition(LEDGER)
    ledger.records = ledger.records[: len(ledger.records) // 2]
    ledger.end = ledger.records[-1].offset + 1


def _exchange(backup: Broker) -> None:
    """It has another outbox's ledger."""
    ledger = backup.partition(LEDGER)
    *_, head = [record for record in ledger.records if record.key == HEAD]
    other = replace(head, value=head.value.replace(str(UUID(int=1)), str(UUID(int=9))))
    ledger.records[ledger.records.index(head)] = other


CHANGES: dict[str, tuple[Callable[[Broker], None], str]] = {
    "its ledger deleted": (_lose, "cluster backup 1: the ledger ends at"),
    "its ledger emptied": (_empty, "cluster backup 1: the ledger ends at"),
    "an older one": (_age, "cluster backup 1: the ledger ends at"),
    "another outbox's": (_exchange, f"cluster backup 1: the ledger belongs to outbox {UUID(int=9)}"),
}


@pytest.mark.parametrize(("change", "named"), CHANGES.values(), ids=CHANGES)
def test_a_backup_that_is_another_one_is_noticed_and_nothing_moves_any_more(
    change: Callable[[Broker], None], named: str
) -> None:
    async def live() -> None:
        scene = LeaderAndWriter(TWO)
        await scene.work()
        change(scene.world.brokers[BACKUP])
        scene.world.database.crash()  # the leader takes over again
        assert named in await scene.noticed()
        published = [len(seen(broker)) for broker in scene.world.brokers.values()]
        scene.write(20)
        Member(scene.world, TWO)
        await asyncio.sleep(30)
        assert [len(seen(broker)) for broker in scene.world.brokers.values()] == published
        assert len(scene.world.database.state.rows) == 20

    simulate(live())


def test_a_backup_that_is_another_one_counts_unless_its_ledger_is_compared() -> None:
    """So the test above can fail."""

    async def live() -> None:
        scene = LeaderAndWriter(TWO)
        await scene.work()
        _exchange(scene.world.brokers[BACKUP])
        with (
            patch.object(recovery, "require_no_rival", lambda *_: None),
            patch("airflow_outbox.harvest.protocol.recovery.differences", lambda *_: ()),
        ):
            scene.world.database.crash()
            scene.write(20)
            await asyncio.sleep(10)
        assert not scene.world.database.state.rows

    simulate(live())


@pytest.mark.parametrize("away", [PRIMARY, BACKUP])
def test_nothing_is_purged_while_a_cluster_is_away_and_all_goes_on_when_it_is_back(away: str) -> None:
    async def live() -> None:
        scene = LeaderAndWriter(TWO)
        await scene.work()
        cluster = scene.world.brokers[away]
        cluster.is_up = False
        scene.write(10)
        await asyncio.sleep(30)
        assert len(scene.world.database.state.rows) == 10
        assert f"cluster {away}: " in str([event.fields for event in scene.member.events if event.name == "error"])
        cluster.is_up = True
        await asyncio.sleep(8)
        assert _holds_all(scene.world, scene.world.brokers.values())

    simulate(live())


def test_a_promoted_backup_goes_on_alone() -> None:
    async def live() -> None:
        scene = LeaderAndWriter(TWO)
        await scene.work()
        scene.world.broker.is_up = False
        scene.write(10)
        await asyncio.sleep(5)
        scene.world.server.write_membership(BACKUP, [])
        await asyncio.sleep(15)
        assert _holds_all(scene.world, [scene.world.brokers[BACKUP]])

    simulate(live())


def _holds_all(world: World, brokers: Iterable[Broker]) -> bool:
    found = [complaint for broker in brokers for complaint in complaints(world.database, broker)]
    return not found and not world.database.state.rows


REFUSED: dict[str, tuple[Callable[[Broker], None], str]] = {
    "its ledger deleted": (_lose, "ledger"),
    "its ledger emptied": (_empty, "ledger"),
    "an older one": (_age, "ledger"),
    "another outbox's": (_exchange, f"the ledger belongs to outbox {UUID(int=9)}"),
}


async def _detached() -> LeaderAndWriter:
    """The backup has missed 20 records."""
    scene = LeaderAndWriter(TWO)
    await scene.work()
    scene.world.server.write_membership(PRIMARY, [])
    await asyncio.sleep(5)  # until then the leader may commit what it has begun
    scene.write(20)
    await asyncio.sleep(8)
    assert not scene.world.database.state.rows
    assert len(seen(scene.world.brokers[BACKUP])) < len(seen(scene.world.broker))
    return scene


async def _ask_to_attach(scene: LeaderAndWriter, how: AttachHow | None = None) -> Collection[str]:
    """The clusters that count after that."""
    server, database = scene.world.server, scene.world.database
    server.set_fence(replace(database.state.fence, attach=BACKUP, attach_how=how))
    while database.state.fence.attach is not None:
        await asyncio.sleep(0.5)
    return [*database.state.fence.backups]


def test_a_detached_backup_gets_what_it_has_missed() -> None:
    async def live() -> None:
        scene = await _detached()
        assert await _ask_to_attach(scene) == [BACKUP]
        scene.write(10)
        await asyncio.sleep(5)
        assert _holds_all(scene.world, [scene.world.broker])
        assert not [*differences_of(scene.world.broker, scene.world.brokers[BACKUP])]
        assert not scene.world.database.state.owed

    simulate(live())


@pytest.mark.parametrize(("change", "named"), REFUSED.values(), ids=REFUSED)
def test_a_backup_that_is_another_one_is_not_attached_and_nobody_waits_for_it(
    change: Callable[[Broker], None], named: str
) -> None:
    async def live() -> None:
        scene = await _detached()
        change(scene.world.brokers[BACKUP])
        assert await _ask_to_attach(scene) == []
        [reason] = scene.world.database.refusals
        assert named in reason
        scene.write(10)
        await asyncio.sleep(5)
        assert _holds_all(scene.world, [scene.world.broker])

    simulate(live())


def test_an_empty_backup_counts_from_now_on() -> None:
    async def live() -> None:
        scene = await _detached()
        backup, before = scene.world.brokers[BACKUP], len(seen(scene.world.broker))
        assert await _ask_to_attach(scene, "reset") == []
        assert "is not empty" in scene.world.database.refusals[0]
        backup.lose_ledger()
        held = len(seen(backup))
        assert await _ask_to_attach(scene, "reset") == [BACKUP]
        scene.world.database.crash()  # the next leader compares the new ledger with the fence row
        await asyncio.sleep(5)
        scene.write(10)
        await asyncio.sleep(8)
        assert len(seen(scene.world.broker)) == before + 10
        assert len(seen(backup)) == held + 10

    simulate(live())


def test_a_cluster_with_losses_counts_only_once_it_is_promoted() -> None:
    async def live() -> None:
        scene = await _detached()
        world, backup = scene.world, scene.world.brokers[BACKUP]
        for _ in range(4):
            scene.write(5)
            await asyncio.sleep(2)
        world.database.statement("drop", (min(world.database.state.owed),))  # as `limits.owed_bytes` would
        world.broker.is_up = False
        with patch.object(type(world.server), "promote", side_effect=FencedError), pytest.raises(FencedError):
            await Promotion(world, TWO, BACKUP, accept_loss=True).running
        world.broker.is_up = True
        await asyncio.sleep(10)
        assert await _ask_to_attach(scene) == []
        assert "is another one there than elsewhere" in world.database.refusals[0]
        world.broker.is_up = False
        scene.write(5)
        await asyncio.sleep(5)
        promotion = Promotion(world, TWO, BACKUP, accept_loss=True)
        await promotion.running
        assert len(promotion.missing) == 1
        await asyncio.sleep(10)
        assert not world.database.state.rows
        values = [record.value for record in seen(backup)]
        assert len(values) == len({*values}) > len(seen(world.broker)) - 20

    simulate(live())
