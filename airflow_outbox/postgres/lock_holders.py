"""Find the sessions that keep an outbox's statements waiting: an operator's transaction left open, for instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements

_CHANGED_IN_PLACE = ("state", "shard", "ledger", "parked")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A transaction that holds locks of an outbox's `table`. `who`: its session, or the prepared transaction."""

    transaction: str
    table: str
    who: str


def lock_holders(connection: psycopg.Connection[Any], name: OutboxName) -> list[LockHolder]:
    """Return the transactions of other sessions that hold, at this moment, a lock that the harvester may wait for.

    They may be the harvester's own, which end at once. Raises PostgresError.
    """
    tables = ["", *_CHANGED_IN_PLACE]
    values = {"tables": [name.text(table) for table in tables], "by_row": [table != "" for table in tables]}
    return [LockHolder(*row) for row in Statements(connection, name).rows("check.lock_holders", values)]
