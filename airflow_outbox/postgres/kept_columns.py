"""The columns that the parked table and the archive keep of a record that leaves the outbox."""

from __future__ import annotations

from collections.abc import Collection

from psycopg import sql

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import composed

_KEPT = (
    "id",
    "create_time",
    "kafka_topic",
    "kafka_key",
    "kafka_value",
    "kafka_header_keys",
    "kafka_header_values",
    "kafka_partition",
    "transaction_id",
)


def kept_columns(columns: Collection[str]) -> sql.Composed:
    """Return the kept columns that the outbox has."""
    return sql.SQL(", ").join(sql.Identifier(column) for column in _KEPT if column in columns)


def archived(name: OutboxName, columns: Collection[str]) -> sql.Composed:
    """Return the part of a statement that archives what it deletes."""
    return composed("archive.archived", name, columns=kept_columns(columns))
