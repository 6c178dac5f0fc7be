"""Replay: a batch that is committed on some clusters only is committed on the others, before it is completed.

It keeps its identity, its records, and their order; its records' places, and so the entry's extents, are the other
cluster's own. The records are taken from the outbox or, if it had taken them from there, from the parked table. No
cluster is read for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from airflow_outbox.errors import HistoryError, KafkaError, RecordsRefusedError
from airflow_outbox.harvest.logs import Logs
from airflow_outbox.harvest.ports import Table
from airflow_outbox.harvest.protocol.clusters import require_same_places
from airflow_outbox.harvest.protocol.commitment import PRIMARY
from airflow_outbox.harvest.protocol.ledger import Entry, expanded
from airflow_outbox.harvest.protocol.ledger_state import LedgerState
from airflow_outbox.harvest.protocol.recovery import Recovery
from airflow_outbox.values.fence import Fence
from airflow_outbox.values.pages import ID, OutboxRow

_SHOWN = 5


async def replay(
    entry: Entry, number: int, *, view: UUID, fence: Fence, found: Recovery, highest_id: int, table: Table, logs: Logs
) -> None:
    """Commit a batch on the log `number`, where recovery has `found` the one before it last, and wait until it can be
    read there. `highest_id` was published by then.

    Raises FencedError, HistoryError when a record is not in Postgres any more, KafkaError, PostgresError.
    """
    cluster, log = logs.clusters[number], logs[number]
    row = fence.on(cluster)
    rows = await _rows(entry, table)
    # Durable before any of these ids is used: a successor that did not know of one would not fence it.
    await table.note_producers(view, cluster, log.transactional_ids)
    if await logs.on(number, lambda _, log: log.begin()):
        await table.require_fence(view)
    try:
        extents = await logs.publish_on(number, rows) if rows else ()
    except RecordsRefusedError as error:
        with logs.naming(cluster):
            reason = error.reason.removeprefix(f"cluster {cluster}: ")
            or_detach = (
                f", or go on without it: `airflow-outbox clusters detach {cluster}`" if number != PRIMARY else ""
            )
            raise KafkaError(
                f"batch {entry.batch} is committed on other clusters, but its records are refused now: {reason}. "
                f"Correct that there{or_detach}"
            ) from error
    with logs.naming(cluster):
        require_same_places(entry.extents, extents, cluster=cluster)
    state = LedgerState(view, row, replace(found, witness=row.witness))
    state.beats = fence.beats  # `begin` has not counted yet
    there = replace(entry, extents=tuple(extents))
    records = state.records(there, highest_id=highest_id)
    await logs.on(number, lambda _, log: log.commit(records, entry=there))
    await logs.on(number, lambda _, log: log.await_readable())
    logs.replayed(number)


async def _rows(entry: Entry, table: Table) -> Sequence[OutboxRow]:
    """Return a batch's rows as they were published. Raises HistoryError unless all are there."""
    ids, unparked = entry.ids(), expanded(entry.unparked)
    rows = await table.committed_rows(ids, unparked, entry.snapshot)
    if missing := {*ids, *unparked} - {row[ID] for row in rows}:
        raise HistoryError(
            f"records {', '.join(map(str, sorted(missing)[:_SHOWN]))} of batch {entry.batch} are neither in the outbox "
            "nor parked, but some clusters lack that batch"
        )
    return rows
