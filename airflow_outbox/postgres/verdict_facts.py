"""The facts about an outbox that its verdict and its metrics are made of, read from Postgres by cheap statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from airflow_outbox.errors import OutboxMissingError, PostgresError
from airflow_outbox.postgres.columns import read_columns
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.slots import slot_of
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.transaction_id_trigger import is_guarded
from airflow_outbox.values.positions import PositionsReport
from airflow_outbox.values.verdict import Backlog, ClusterFacts, Facts, ParkedRefusals, Thresholds, Trouble, TroubleKind

MOST_COUNTED = 100_000
"""Records of the backlog that are counted; above that it is 'more than' this many."""
MOST_PARKED = 1_000
"""Parked records that are counted."""
_BRIEFLY = 2_000
"""Milliseconds that a statement may take."""
_OF_A_SHARD = {
    "member": "leaders",
    "heard_at": "heard_ats",
    "took_over_at": "took_over_ats",
    "published_at": "published_ats",
    "last_error": "last_errors",
    "last_error_at": "last_error_ats",
    "in_flight": "in_flights",
    "rate": "shard_rates",
    "published": "publisheds",
}
"""The facts of a shard, and the columns of `verdict.facts` that have them."""


def read_facts(connection: psycopg.Connection[Any], name: OutboxName) -> Facts:
    """Read the facts and change nothing. Raises OutboxMissingError, PostgresError."""
    name = located(connection, name)
    columns = read_columns(connection, name)
    statements = verdict_statements(connection, name, bytes_keys=columns["kafka_key"].is_bytes)
    waiting = _waiting(statements, name, has_transactions="transaction_id" in columns)
    with translated(name), connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        statements.execute("verdict.brief", {"milliseconds": _BRIEFLY})
        parked = statements.rows("verdict.parked", {"most_parked": MOST_PARKED})
        row = cursor.execute(statements.composed("verdict.facts")).fetchone()
        troubles = statements.rows("verdict.troubles")
    if row is None:
        raise no_rows(name)
    return facts_of(row, waiting=waiting, most=MOST_COUNTED, parked=parked, troubles=troubles)


def verdict_statements(connection: psycopg.Connection[Any], name: OutboxName, *, bytes_keys: bool) -> Statements:
    """Return the statements of an outbox, located already, with the parts that those about its facts take."""
    statements = Statements(connection, name)
    return statements.having(age=statements.composed("verdict.age"), slot=slot_of(bytes_keys=bytes_keys))


def no_rows(name: OutboxName) -> OutboxMissingError:
    """Return the error of an outbox that lacks the rows of its shards."""
    return OutboxMissingError(f"{name.text('shard')} or {name.text('state')} is empty. Run `airflow-outbox init`")


def facts_of(
    row: Mapping[str, Any],
    *,
    waiting: Iterable[tuple[int | None, int, float | None]] | None,
    most: int,
    parked: Iterable[tuple[int, str, int, Any, str]],
    troubles: Iterable[Sequence[Any]],
) -> Facts:
    """Return the facts that the rows of the verdict's statements have. `waiting` is None if it could not be counted;
    at most this many records were.
    """
    numbers: list[int] = row["shards"]
    backlogs = {
        shard: Backlog(min(records, bound), records <= bound, age)
        for shard, records, age in waiting or ()
        for bound in (most if shard is None else most // len(numbers),)
    }
    refusals: dict[int, dict[str, ParkedRefusals]] = {}
    for shard, cause, *found in parked:
        refusals.setdefault(shard, {})[cause] = ParkedRefusals(*found)
    told = tuple(Trouble(member, TroubleKind(kind), *rest) for member, kind, *rest in troubles)
    common = {name: row[name] for name in ("now", "is_standby", "paused", "paused_at", "doubt", "layout")}
    told_bounds = {name: row[name] for name in Thresholds.__slots__ if row[name] is not None}
    common["thresholds"] = Thresholds(**told_bounds)
    common["clusters"] = _clusters(row["clusters"] or {})
    common["positions"] = tuple(PositionsReport.parse(each) for each in row["positions"] or ())
    shards = [
        Facts(
            **common,
            **{fact: row[column][place] for fact, column in _OF_A_SHARD.items()},
            shard=shard,
            backlog=backlogs.get(shard),
            parked=refusals.get(shard, {}),
            troubles=told,
        )
        for place, shard in enumerate(numbers)
    ]
    return Facts.of(shards, backlog=backlogs.get(None))


def _clusters(found: Mapping[str, Mapping[str, Any]]) -> tuple[ClusterFacts, ...]:
    """Return several clusters, the primary first; nothing where there is one."""
    if len(found) < 2:
        return ()
    most = max(int(each["batches"]) for each in found.values())
    clusters = (
        ClusterFacts(
            name,
            each["part"],
            most - int(each["batches"]),
            datetime.fromisoformat(each["since"]),
            each["reason"],
            None if each["owed_since"] is None else datetime.fromisoformat(each["owed_since"]),
            each["is_wanted"],
        )
        for name, each in found.items()
    )
    return tuple(sorted(clusters, key=lambda cluster: (cluster.part != "primary", cluster.name)))


def backlog_statement(*, is_guarded: bool) -> str:
    """Return the name of the statement that counts what waits, for an outbox with or without the guard on its rows."""
    return "verdict.backlog_after_watermark" if is_guarded else "verdict.backlog"


def _waiting(statements: Statements, name: OutboxName, *, has_transactions: bool) -> list[tuple[Any, ...]] | None:
    """Count what waits; None if that takes too long, for dead rows."""
    connection = statements.connection
    statement = backlog_statement(is_guarded=has_transactions and is_guarded(connection, name))
    try:
        with translated(name), connection.transaction():
            statements.execute("verdict.brief", {"milliseconds": _BRIEFLY})
            return statements.rows(statement, {"most": MOST_COUNTED})
    except PostgresError as error:
        if isinstance(error.__cause__, psycopg.errors.QueryCanceled):
            return None
        raise
