"""The facts for the verdict, read from Postgres by cheap statements, and the verdict on them."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg
from psycopg.rows import dict_row

from airflow_outbox.errors import OutboxError, OutboxMissingError, PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.columns import read_columns
from airflow_outbox.postgres.connection import connect, located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.loaded_rows import is_guarded
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.verdict import Backlog, Facts, ParkedRefusals, Trouble, TroubleKind, Verdict, judge, unknown

SHARD = 0
MOST_COUNTED = 100_000
"""Records of the backlog that are counted; above that it is 'more than' so many."""
_MOST_PARKED = 1_000
_BRIEFLY = 2_000
"""Milliseconds that a statement may take."""


def read_verdict(config: HarvestConfig) -> Verdict:
    """Return how the outbox is doing: UNKNOWN if Postgres can't be reached, or the role may not look."""
    try:
        with closing(connect(config.data_source, purpose="verdict")) as connection:
            return judge(read_facts(connection, config.name), config.thresholds)
    except OutboxError as error:
        return unknown(str(error))


def read_facts(connection: psycopg.Connection[Any], name: OutboxName) -> Facts:
    """Read the facts and change nothing. Raises OutboxMissingError, PostgresError."""
    name = located(connection, name)
    statements = Statements(connection, name)
    statements = statements.having(age=statements.composed("verdict.age"))
    backlog = _backlog(statements, name)
    with translated(name), connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        statements.execute("verdict.brief", {"milliseconds": _BRIEFLY})
        parked = statements.rows("verdict.parked", {"most": _MOST_PARKED})
        facts = cursor.execute(statements.composed("verdict.facts"), {"shard": SHARD}).fetchone()
        troubles = cursor.execute(statements.composed("verdict.troubles")).fetchall()
    if facts is None:
        raise OutboxMissingError(f"{name.text('shard')} or {name.text('state')} is empty. Run `airflow-outbox init`")
    return Facts(
        **facts,
        backlog=backlog,
        parked={cause: ParkedRefusals(*found) for cause, *found in parked},
        troubles=tuple(Trouble(**{**each, "kind": TroubleKind(each["kind"])}) for each in troubles),
    )


def _backlog(statements: Statements, name: OutboxName) -> Backlog | None:
    """Count what waits; None if that takes too long, for dead rows."""
    connection = statements.connection
    guarded = "transaction_id" in read_columns(connection, name) and is_guarded(connection, name)
    statement = "verdict.backlog_after_watermark" if guarded else "verdict.backlog"
    try:
        with translated(name), connection.transaction():
            statements.execute("verdict.brief", {"milliseconds": _BRIEFLY})
            records, age = statements.row(statement, {"most": MOST_COUNTED, "shard": SHARD})
    except PostgresError as error:
        if isinstance(error.__cause__, psycopg.errors.QueryCanceled):
            return None
        raise
    return Backlog(min(records, MOST_COUNTED), records <= MOST_COUNTED, age)
