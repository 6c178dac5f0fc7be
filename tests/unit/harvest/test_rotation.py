"""Producers that take turns: what is known of their commits while some get a new epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

import pytest
from support.harvesting import PATIENCE

from airflow_outbox.harvest.protocol.extents import ExtentsToWrite
from airflow_outbox.harvest.protocol.ledger import Extent, LedgerRecord
from airflow_outbox.harvest.rotation import Rotation
from airflow_outbox.values.extents import TopicAndPartition
from airflow_outbox.values.pages import OutboxRow

ROWS: list[OutboxRow] = [(1, "t", "k", "v", [], [], None, 2, None)]


class FakeProducer:
    """Takes everything at once; a renewal lasts until `may_renew` is set."""

    needs_epoch = False

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.may_renew, self.renewed = asyncio.Event(), asyncio.Event()
        self._offset = 0

    async def fence(self) -> None: ...

    async def renew(self) -> None:
        await self.may_renew.wait()
        self.renewed.set()

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        self._offset += len(rows)
        return [Extent("t", 0, self._offset, self._offset, 1)]

    async def write(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> None:
        return None

    async def commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> int:
        return self._offset

    def close(self) -> None: ...


async def no_marker_is_written(places: Collection[TopicAndPartition]) -> Mapping[TopicAndPartition, int]:
    return dict.fromkeys(places, 0)


async def test_a_renewal_proves_nothing_of_the_next_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes soon where another producer, which was to be initialised again at the same time, takes longer."""
    monkeypatch.setattr("airflow_outbox.harvest.rotation._ASKING_TIME", 0.01)
    slow, fast = FakeProducer("slow"), FakeProducer("fast")
    rotation = Rotation([slow, fast], stable_offsets=no_marker_is_written)
    for _ in range(3):
        await rotation.begin()
        await rotation.publish(ROWS)
        await rotation.commit([])
    asking = asyncio.create_task(rotation.await_readable())
    fast.may_renew.set()
    async with asyncio.timeout(PATIENCE):
        await fast.renewed.wait()
    assert await rotation.begin()
    await rotation.publish(ROWS)
    await rotation.commit([])
    slow.may_renew.set()
    await asking
    assert rotation.readable == 3
