"""Many parked records, in an empty database."""

from __future__ import annotations

from uuid import UUID, uuid4

import psycopg

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable

NAME = OutboxName.parse("outbox")


def of_a_topic_that_was_missing(connection: psycopg.Connection, *, records: int = 50_000) -> tuple[ParkedTable, UUID]:
    """Records of many keys, which all may go on now; and the view under which they may."""
    init_outbox(connection, NAME)
    connection.execute(
        "INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys,"
        " kafka_header_values, transaction_id, incarnation)"
        " SELECT n, now(), 't', 'k' || n %% 25000, '{}', '{}', '3', 1 FROM generate_series(1, %s) AS n",
        [records],
    )
    connection.execute("ANALYZE outbox_parked")
    table, view = OutboxTable(connection, NAME), uuid4()
    table.take_over(view, [table.backend()], member="test")
    return ParkedTable(table), view


def released(connection: psycopg.Connection, parked: ParkedTable, view: UUID) -> list[int]:
    """The ids of those that go on first."""
    assert parked.release(view, max_records=20_000)
    connection.execute("ANALYZE outbox_parked")
    rows, _ = parked.due(max_records=20_000, max_bytes=10**9, of_all_lanes=False)
    return [row[0] for row in rows]


def of_a_topic_half_of_whose_keys_wait(connection: psycopg.Connection) -> ParkedTable:
    """For somebody who asks, among records without a key. One record stands for the topic, behind all of these."""
    init_outbox(connection, NAME)
    connection.execute(
        "INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys,"
        " kafka_header_values, transaction_id, incarnation, cause)"
        " SELECT n, now(), 't', CASE WHEN n % 25000 > 0 THEN 'k' || n % 25000 END, '{}', '{}', '3', 1,"
        " CASE WHEN n <= 25000 AND n % 2 = 0 THEN 'too_large' END FROM generate_series(1, 50000) AS n"
    )
    connection.execute("UPDATE outbox_parked SET cause = 'unknown_topic', retry_at = now() WHERE id = 49999")
    connection.execute("ANALYZE outbox_parked")
    return ParkedTable(OutboxTable(connection, NAME))


def due(parked: ParkedTable) -> list[int]:
    rows, _ = parked.due(max_records=25_000, max_bytes=10**9, of_all_lanes=False)
    return [row[0] for row in rows]
