"""How an outbox is doing, by one statement: for a page that shows many of them, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from airflow_outbox.errors import OutboxMissingError, PostgresError
from airflow_outbox.postgres.connection import OutboxConnection
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.verdict_facts import (
    MOST_COUNTED,
    MOST_PARKED,
    backlog_statement,
    facts_of,
    no_rows,
    verdict_statements,
)
from airflow_outbox.values.judging import judge
from airflow_outbox.values.verdict import Facts, Verdict

FEW: Final = 1_000
"""Records of the backlog that are counted where many outboxes are shown."""
MANY: Final = MOST_COUNTED


@dataclass(frozen=True, slots=True)
class Shape:
    """An outbox as it is known after the first question: its name with its schema, the statement that counts what
    waits, and whether its keys are bytes.
    """

    name: OutboxName
    backlog: str
    bytes_keys: bool = False


@dataclass(frozen=True, slots=True)
class Overview:
    """A verdict, and the facts that it was made of.

    - `parked`: the parked records that wait, both those that were refused and those behind them, counted up to
      `MOST_PARKED` and one more
    - `rates`: the records published a second in each minute of the last hour (None: nobody led), the oldest first
    """

    verdict: Verdict
    facts: Facts
    parked: int
    rates: tuple[float | None, ...]


def begin_session(connection: psycopg.Connection[Any], *, seconds: float) -> None:
    """Let every statement of this connection end within this many seconds, and use indexes. Raises PostgresError."""
    Statements(connection, OutboxName(None, "outbox")).execute("overview.begin", {"milliseconds": int(1000 * seconds)})


def find_shape(connection: psycopg.Connection[Any], name: OutboxName) -> Shape:
    """Look for the outbox by one statement, over a connection of the outbox's own.

    Raises PostgresError, OutboxMissingError.
    """
    own = connection.schemas if isinstance(connection, OutboxConnection) else ()
    schemas = [name.schema] if name.schema else list(own)
    row = Statements(connection, name).row("overview.shape", {"schemas": schemas, "table": name.table})
    if row is None:
        where = f"in the schema {name.schema}" if name.schema else f"in the schemas {', '.join(schemas) or '(none)'}"
        raise OutboxMissingError(f"there is no table {name} {where}. Run `airflow-outbox init`, or correct the name")
    schema, guarded, bytes_keys = row
    return Shape(name.located(schema), backlog_statement(is_guarded=guarded), bytes_keys)


def read_overview(connection: psycopg.Connection[Any], shape: Shape, *, most: int = FEW) -> Overview:
    """Read how an outbox is doing by its leader's bounds, and change nothing; count at most this many records.

    Where counting takes too long, it is asked once more, without. Raises OutboxMissingError, PostgresError.
    """
    try:
        return _read(connection, shape, shape.backlog, most)
    except PostgresError as error:
        if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
            raise
    return _read(connection, shape, "overview.nothing_counted", most)


def _read(connection: psycopg.Connection[Any], shape: Shape, backlog: str, most: int) -> Overview:
    name = shape.name
    statements = verdict_statements(connection, name, bytes_keys=shape.bytes_keys)
    parts = {"facts": "verdict.facts", "backlog": backlog, "parked_facts": "verdict.parked"}
    parts["troubles"] = "verdict.troubles"
    query = statements.composed(
        "overview.overview", **{part: statements.composed(statement) for part, statement in parts.items()}
    )
    values = {"most": most, "most_parked": MOST_PARKED}
    with translated(name), connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query, values, prepare=True).fetchone()  # planning takes longer than all else
    if row is None:
        raise no_rows(name)
    return _overview(row, most)


def _overview(row: dict[str, Any], most: int) -> Overview:
    def columns(*names: str) -> list[tuple[Any, ...]]:
        return list(zip(*(row[name] or () for name in names), strict=True))

    waiting = columns("waiting_shards", "records", "waiting_ages")
    facts = facts_of(
        row,
        waiting=None if any(records is None for _, records, _ in waiting) else waiting,
        most=most,
        parked=columns("parked_shards", "causes", "counts", "sinces", "reasons"),
        troubles=columns("members", "kinds", "errors", "told_sinces", "times", "told_shards"),
    )
    return Overview(judge(facts, facts.thresholds), facts, row["all_parked"], tuple(row["rates"] or ()))
