"""Catching up: records come into the partitions where others have them, and a start that was cut is made again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from support.harvesting import PATIENCE
from unit.harvest.owed_ports import WEST, OwedLog, OwedTable, catching_up, entry

from airflow_outbox.errors import HistoryError, KafkaError
from airflow_outbox.harvest import catch_up
from airflow_outbox.harvest.catch_up import CatchUp
from airflow_outbox.harvest.kafka.partitioner import murmur2
from airflow_outbox.harvest.logs import Logs
from airflow_outbox.harvest.protocol.commitment import Commitment
from airflow_outbox.values.fence import LedgerPosition, LedgerRow, OperatorRequest, Skipped


async def test_a_record_without_a_key_goes_by_its_id_as_it_did_elsewhere() -> None:
    """Its place in the batch is 1, and its id 10."""
    table, log = OwedTable([entry(1, partition=10 % 4)], witness=1, key=""), OwedLog(partitions=4)
    attaching = await catching_up(table, log)
    await attaching.begin(how=None, last=1)
    assert await attaching.advance(upto=1) == 1


async def test_the_topics_of_what_it_gets_are_looked_up_before_its_records_are_placed() -> None:
    place = murmur2(b"key") % 8
    table, log = OwedTable([entry(1, records=2, partition=place)], witness=1, key="key"), OwedLog(partitions=8)
    table.row = replace(table.row, owed={WEST: LedgerRow(LedgerPosition("T"), (), Skipped(1, ((10, 10),)))})
    attaching = await catching_up(table, log)
    await attaching.begin(how=None, last=1)
    assert await attaching.advance(upto=1) == 1
    assert log.published == [11]


async def test_records_whose_partitions_nobody_knows_are_not_sent() -> None:
    table, log, places = OwedTable([entry(1, records=2)], witness=1), OwedLog(), OwedLog()
    places.choose_partitions = lambda rows: None  # type: ignore[method-assign]
    table.row = replace(table.row, owed={WEST: LedgerRow(LedgerPosition("T"), (), Skipped(1, ((10, 10),)))})
    attaching = await catching_up(table, log, places=places)
    await attaching.begin(how=None, last=1)
    with pytest.raises(KafkaError, match="nobody can tell into which partitions records of t go"):
        await attaching.advance(upto=1)
    assert not log.published


async def test_a_batch_between_others_that_is_not_kept_is_missed() -> None:
    table, log = OwedTable([entry(1), entry(2), entry(4)], witness=4), OwedLog()
    attaching = await catching_up(table, log)
    await attaching.begin(how=None, last=4)
    with pytest.raises(HistoryError, match="it lacks batch 3, which is not kept any more"):
        await attaching.advance()


@pytest.mark.parametrize("topic_id", [None, "the one before"])
async def test_a_reset_that_was_cut_is_made_again(topic_id: str | None) -> None:
    table, log = OwedTable([], witness=7, topic_id=topic_id), OwedLog()
    await (await catching_up(table, log)).begin(how="reset", last=7)
    again = await catching_up(table, log)
    await again.begin(how="reset", last=9)
    assert (await again.row()).witness.batch == 9
    ledger = await log.ledger(0)
    assert ledger.head is not None
    assert (ledger.head.batch, [each.batch for each in ledger.entries]) == (9, [9])


async def test_only_an_own_start_without_records_is_made_again() -> None:
    table, log = OwedTable([entry(8)], witness=8, topic_id=None), OwedLog()
    started = await catching_up(table, log)
    await started.begin(how="reset", last=7)
    table.row = replace(table.row, outbox_id=UUID(int=9))
    with pytest.raises(HistoryError, match="the ledger belongs to outbox"):
        await (await catching_up(table, log)).begin(how="reset", last=7)
    table.row = replace(table.row, outbox_id=UUID(int=1))
    started = await catching_up(table, log)
    await started.begin(how="reset", last=7)
    await started.advance()
    with pytest.raises(HistoryError, match="the ledger was written before this database had one"):
        await (await catching_up(table, log)).begin(how="reset", last=8)


@pytest.mark.parametrize(("shard", "ends"), [(0, True), (1, False)])
async def test_a_reset_opens_its_producers_once_on_each_shard(
    monkeypatch: pytest.MonkeyPatch, shard: int, ends: bool
) -> None:
    monkeypatch.setattr(catch_up, "_INTERVAL", 0.001)
    table: Any = OwedTable([], witness=7, topic_id=None)
    log: Any = OwedLog()
    opened, request, view = [log], OperatorRequest(attach=WEST, attach_how="reset"), uuid4()
    await table.take_over(view)

    async def new_log() -> Any:
        opened.append(log)
        return log

    running = asyncio.create_task(
        CatchUp(
            view=view,
            shard=shard,
            owed=[WEST],
            table=table,
            logs=Logs({"primary": log}),
            new_logs={WEST: new_log},
            commitment=Commitment(last=7, max_records=1),
            request=lambda: request,
            accounted=lambda: 7,
            is_busy=lambda: False,
        ).run()
    )
    async with asyncio.timeout(PATIENCE):
        while (len(opened) - 1, running.done()) != (1, ends):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert (len(opened) - 1, running.done()) == (1, ends)
    running.cancel()
