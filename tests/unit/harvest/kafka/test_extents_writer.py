"""Extents tell the ids that a batch's topics had when its own transaction was sent, and not those of another one."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.extents import OUTBOX, entry_of

from airflow_outbox.harvest.kafka.extents_writer import ExtentsFailures, ExtentsWriter
from airflow_outbox.harvest.kafka.transactional_log import KafkaTransactionalLog
from airflow_outbox.harvest.protocol.extents import ExtentsState
from airflow_outbox.harvest.protocol.ledger import Extent, LedgerRecord
from airflow_outbox.values.pages import OutboxRow

ROWS = cast("Sequence[OutboxRow]", [(1, "orders", "k", "v", (), (), 0, 1, None)])
RECORDS: Sequence[LedgerRecord] = [("head", "{}")]


class Rotation:
    """Keeps the extents of each commit."""

    def __init__(self) -> None:
        self.extents: list[Any] = []

    async def begin(self) -> bool:
        return False

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        return [Extent("orders", 0, 7, 7, len(rows))]

    async def write(self, records: object, extents: Any = None) -> None:
        self.extents.append(extents)

    async def commit(self, records: object, extents: Any = None) -> int:
        if records:
            await self.write(records, extents)
        return len(self.extents)


class Asker:
    async def call(self, function: Any, *values: Any) -> Any:
        return function(*values)


class Book:
    def topic_ids(self, topics: Collection[str], *, again: Collection[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "o1")


@pytest.mark.parametrize("is_written_ahead", [False, True])
@pytest.mark.parametrize("before", [0, 1, 3])
async def test_a_transaction_without_a_batch_takes_no_other_ones_topic_ids(before: int, is_written_ahead: bool) -> None:
    """An entry is written alone where a cluster is accepted, or begins with an empty ledger."""
    names = cast(Any, SimpleNamespace(extents_topic="extents"))
    told: list[str | None] = []
    extents = ExtentsWriter(cast(Any, None), names, 0, cast(Any, Book()), ExtentsFailures(told.append))
    extents._state = ExtentsState()
    rotation = Rotation()
    log = object.__new__(KafkaTransactionalLog)
    log._extents, log._rotation, log._asker = extents, cast(Any, rotation), cast(Any, Asker())
    log._fencing = cast(Any, SimpleNamespace(noting_stuck=nullcontext))
    for _ in range(before):
        await log.begin()
        await log.commit(RECORDS)
    await log.begin()
    published = await log.publish(ROWS)
    if is_written_ahead:
        await log.write(RECORDS, entry=entry_of(5, [*published]))
        assert not told
        await log.commit([])
    else:
        await log.commit(RECORDS, entry=entry_of(5, [*published]))
    assert told == [None]
    *_, written = rotation.extents
    [(_, value)] = written.records
    assert json.loads(value)["extents"] == [["orders", "o1", [[0, 7, 7, 1, None]]]]
    assert json.loads(value)["outbox_id"] == str(OUTBOX)
