"""Translate the protocol's refusals for the parked table."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_outbox.harvest.protocol.ledger import Parked, expanded
from airflow_outbox.harvest.protocol.parking import Cause, Refusal
from airflow_outbox.postgres.parked import ParkedTable, Why
from airflow_outbox.postgres.table import OutboxTable

_TOPIC_CAUSES = [cause.value for cause in Cause if cause.is_of_the_topic]
_PASSING_CAUSES = [cause.value for cause in Cause if cause.can_pass]
_FIRST_DELAY = 5.0


def parked_table(table: OutboxTable) -> ParkedTable:
    """The parked records of an outbox, over the same connection."""
    return ParkedTable(
        table.connection,
        table.name,
        table.columns,
        topic_causes=_TOPIC_CAUSES,
        passing_causes=_PASSING_CAUSES,
        archives=table.archives,
        most_bytes=table.most_bytes,
    )


def why(refusal: Refusal | None) -> Why:
    """Why a record waits: its refusal, or (None) another record. A cause that can pass is tried again by itself."""
    if refusal is None:
        return Why(None, None, None)
    return Why(refusal.cause.value, refusal.reason, _FIRST_DELAY if refusal.cause.can_pass else None)


def reasons(parked: Sequence[Parked]) -> dict[int, Why]:
    """Why each of these records waits, by id."""
    records: dict[int, Why] = {}
    for group in parked:
        refusal = None if group.cause is None else Refusal(Cause(group.cause), group.reason or "")
        records.update(dict.fromkeys(expanded(group.runs), why(refusal)))
    return records
