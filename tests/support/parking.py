"""Parked records, made by hand."""

from __future__ import annotations

from typing import Any

import psycopg


def park_by_hand(
    connection: psycopg.Connection[Any],
    *keys: Any,
    topic: str = "t",
    cause: str | None = "refused",
    value: Any = None,
    outbox: str = "outbox",
) -> None:
    """Park a record for each key, with ids from 0."""
    parked = f"{outbox}_parked"
    column = "SELECT 1 FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'transaction_id'"
    if connection.execute(column, [parked]).fetchone():
        connection.execute(f"ALTER TABLE {parked} ALTER transaction_id DROP NOT NULL".encode())
    for number, key in enumerate(keys):
        connection.execute(
            f"INSERT INTO {parked} (id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
            " kafka_header_values, incarnation, cause, reason)"
            " VALUES (%s, now(), %s, %s, %s, '{}', '{}', 1, %s, 'because')".encode(),
            (number, topic, key, value, cause),
        )
