"""Entering what operators ask for in the trail, in the transaction that carries it out.

Postgres enters the time and the session's role. The role itself says on whose behalf it asks, so that name is as
trustworthy as the role.
"""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_outbox.postgres.connection import storable
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements

_LONGEST_NAME = 200
_LONGEST_TEXT = 1000


def enter(
    connection: psycopg.Connection[Any],
    name: OutboxName,
    action: str,
    *,
    on_behalf_of: str | None,
    matched: str | None = None,
    reason: str | None = None,
    records: int | None = None,
) -> None:
    """Enter a request in the transaction that carries it out. Raises PostgresError."""
    note = noted(connection, action, on_behalf_of=on_behalf_of, matched=matched, reason=reason)
    Statements(connection, name).execute("trail.enter", {**note, "records": records})


def noted(
    connection: psycopg.Connection[Any],
    action: str,
    *,
    on_behalf_of: str | None,
    matched: str | None = None,
    reason: str | None = None,
    counts: bool = False,
) -> dict[str, Any]:
    """Return the values of a request's note. `counts` says whether it means records, which are then counted."""
    return {
        "action": action,
        "on_behalf_of": _bounded(connection, on_behalf_of, _LONGEST_NAME),
        "matched": _bounded(connection, matched, _LONGEST_TEXT),
        "noted_reason": _bounded(connection, reason, _LONGEST_TEXT),
        "counts": counts,
    }


def _bounded(connection: psycopg.Connection[Any], text: str | None, longest: int) -> str | None:
    if text is None:
        return None
    text = storable(connection, text)
    return text if len(text) <= longest else text[: longest - 3] + "..."
