"""Promoting a cluster that lacks records: it has none twice, and what it lacks is told, also if nothing comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from unit.harvest.owed_ports import WEST, OwedLog, OwedTable, catching_up, entry

from airflow_outbox.errors import FencedError, HistoryError
from airflow_outbox.harvest.promoting import Promoting
from airflow_outbox.harvest.protocol.ledger import Entry
from airflow_outbox.harvest.protocol.recovery import recover
from airflow_outbox.values.fence import LedgerPosition, LedgerRow


class Promotion:
    """A run of the command, on one shard."""

    def __init__(self, table: OwedTable, log: OwedLog, *, fails: bool = False) -> None:
        self.rows: Mapping[int, LedgerRow] = {}
        self.missing: Sequence[str] = ()
        self._table = table
        self._log = log
        self._fails = fails

    async def run(self, *, accept_loss: bool = False) -> None:
        async def new_log() -> Any:
            return self._log

        promoting = Promoting(
            new_table=lambda _: self._table,  # type: ignore[arg-type,return-value]
            new_logs=lambda _: {WEST: new_log},
            write=self._write,
        )
        await promoting(WEST, accept_loss=accept_loss)

    async def _write(self, views: Mapping[int, UUID], rows: Mapping[int, LedgerRow], missing: Sequence[str]) -> None:
        if self._fails:
            await self._table.take_over(uuid4())
            raise FencedError("the leader is back")
        self.rows, self.missing = rows, missing

    async def completed(self) -> list[int]:
        """The batches that the next leader completes."""
        found = recover(self._table.promoted(self.rows), await self._log.ledger(self.rows[0].witness.offset))
        return [each.batch for each in found.unpurged]


def lossy() -> OwedTable:
    """Batch 3 is kept no more, and one of two records of batch 5."""
    table = OwedTable([entry(batch, records=2) for batch in (1, 2, 4, 5, 6)], witness=6)
    table.rows[5] = [2]
    return table


ALL_THAT_IS_KEPT = [10, 11, 20, 21, 40, 41, 51, 60, 61]


async def test_a_promotion_that_fails_leaves_no_loss_that_counts() -> None:
    table, log = lossy(), OwedLog()
    with pytest.raises(FencedError):
        await Promotion(table, log, fails=True).run(accept_loss=True)
    assert log.published == ALL_THAT_IS_KEPT
    assert table.noted.batch <= 2
    attaching = await catching_up(table, log)
    with pytest.raises(HistoryError, match="batch 3 is another one there than elsewhere"):
        await attaching.begin(how=None, last=6)
    accepting = await catching_up(table, log)
    await accepting.begin(how="accept", last=6)
    with pytest.raises(HistoryError, match="it lacks batch 3, which is not kept any more"):
        await accepting.advance(upto=6)


async def test_a_batch_that_is_not_whole_is_another_one() -> None:
    table, log = OwedTable([entry(1), entry(2, records=3)], witness=2), OwedLog()
    table.rows[2] = [1, 3]
    with pytest.raises(FencedError):
        await Promotion(table, log, fails=True).run(accept_loss=True)
    attaching = await catching_up(table, log)
    with pytest.raises(HistoryError, match="batch 2 is another one there than elsewhere"):
        await attaching.begin(how=None, last=2)
    [there] = [each for each in (await log.ledger(0)).entries if each.batch == 2]
    assert there.ids() == [20, 22]


async def test_a_promotion_that_has_failed_is_repeated_and_nothing_comes_twice() -> None:
    table, log = lossy(), OwedLog()
    for _ in range(2):
        with pytest.raises(FencedError):
            await Promotion(table, log, fails=True).run(accept_loss=True)
    promotion = Promotion(table, log)
    await promotion.run(accept_loss=True)
    assert log.published == ALL_THAT_IS_KEPT
    assert promotion.missing == ["batch 3", "records of batch 5"]
    assert await promotion.completed() == []


async def test_several_lost_batches_are_passed_over_again() -> None:
    table, log = OwedTable([entry(batch) for batch in (1, 5, 6)], witness=6), OwedLog()
    with pytest.raises(FencedError):
        await Promotion(table, log, fails=True).run(accept_loss=True)
    promotion = Promotion(table, log)
    await promotion.run(accept_loss=True)
    assert (log.published, promotion.missing) == ([10, 50, 60], ["batches 2 to 4"])


async def test_a_batch_that_is_kept_and_not_purged_is_completed_by_the_next_leader_only() -> None:
    """Batches 5 and 6 are on the lost primary; nobody knows whether they were purged."""
    table, log = OwedTable([entry(batch) for batch in (2, 3, 4, 5, 6)], witness=4), OwedLog()
    promotion = Promotion(table, log)
    await promotion.run(accept_loss=True)
    assert (log.published, promotion.missing) == ([20, 30, 40, 50, 60], ["batch 1"])
    assert await promotion.completed() == [5, 6], "and accounts for them"


async def test_where_a_batch_after_the_witness_is_lost_nothing_that_is_kept_waits_in_the_outbox() -> None:
    table, log = OwedTable([entry(batch) for batch in (1, 2, 4)], witness=2), OwedLog()
    promotion = Promotion(table, log)
    await promotion.run(accept_loss=True)
    assert (log.published, promotion.missing, table.purged) == ([10, 20, 40], ["batch 3"], [40])
    assert await promotion.completed() == []
    assert promotion.rows[0].witness.batch == 4


async def test_what_a_shortened_ledger_gets_back_is_not_taken_for_what_it_has_lost() -> None:
    """It has lost batches 2 to 4, of which 2 is kept no more."""
    table, log = OwedTable([entry(1)], witness=5), OwedLog()
    attaching = await catching_up(table, log)
    await attaching.begin(how=None, last=1)
    await attaching.advance()
    table.kept = [entry(batch) for batch in (3, 4, 5)]
    table.row = replace(table.row, owed={WEST: LedgerRow(LedgerPosition("T", 4, 1))})
    with pytest.raises(FencedError):
        await Promotion(table, log, fails=True).run(accept_loss=True)
    attaching = await catching_up(table, log)
    with pytest.raises(HistoryError, match="batch 2 is another one there than elsewhere"):
        await attaching.begin(how=None, last=5)


@pytest.mark.parametrize("accept_loss", [False, True])
async def test_a_cluster_that_was_ahead_of_what_the_primary_had_accounted_for_is_promoted(accept_loss: bool) -> None:
    """It was caught up at the tip, where a batch is kept before Postgres witnesses it."""
    kept: list[Entry] = [entry(batch) for batch in range(1, 22)]
    table, log = OwedTable(kept[:20], witness=10), OwedLog()
    beside = await catching_up(table, log)
    await beside.begin(how=None, last=20)
    while await beside.advance(most=6):
        table.row = replace(table.row, witness=LedgerPosition("P", min(15, beside.batch), 15))
        await beside.note(accounted=min(15, beside.batch))
    table.kept = kept
    await beside.advance()
    assert table.noted.batch == 20
    promotion = Promotion(table, log)
    await promotion.run(accept_loss=accept_loss)
    assert await promotion.completed() == [*range(16, 22)]
    assert sorted(log.published) == [10 * batch for batch in range(1, 22)]
