"""Whether an outbox's tables are sound: the owner's, whole, durable, and without somebody else's triggers.

A role that may make tables could make `outbox_archive` before the owner does, and get all that is published.
"""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements

KINDS = {
    "": "table",
    "state": "table",
    "shard": "table",
    "ledger": "table",
    "cluster": "table",
    "owed": "table",
    "owed_rows": "table",
    "commits": "table",
    "adopted": "table",
    "parked": "table",
    "undeleted": "table",
    "published": "view",
    "trouble": "table",
    "member": "table",
    "positions": "table",
    "history": "table",
    "trail": "table",
    "archive": "archive",
}
"""The relations of an outbox by what their names end in, and what each has to be."""


def problems(connection: psycopg.Connection[Any], name: OutboxName) -> list[str]:
    """Return everything that is wrong, each as a sentence without its end. A missing table is not wrong here.

    Raises PostgresError.
    """
    name = located(connection, name)
    values = {
        "outbox": name.text(),
        "archive": name.text("archive"),
        "names": [name.text(suffix) for suffix in KINDS],
        "kinds": list(KINDS.values()),
    }
    rows = Statements(connection, name).rows("soundness.problems", values)
    return [f"table {relation} {problem}" for relation, problem in rows]


def require_sound(connection: psycopg.Connection[Any], name: OutboxName) -> None:
    """Raise ConfigurationError, which names the first problem, unless all is sound."""
    if found := problems(connection, name):
        raise ConfigurationError(
            f"{name}: {found[0]}. Harvesting from it is not safe. Correct that as the table's owner, or drop the table"
        )
