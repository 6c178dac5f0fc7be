"""Rows that are small on disk and large in memory: the harvester stays small, whatever is in the table."""

from __future__ import annotations

import psycopg
import pytest
from hostile.innocents import Innocents
from psycopg import sql

LARGE_VALUES = "ALTER TABLE outbox ALTER kafka_value TYPE text; ALTER TABLE outbox_parked ALTER kafka_value TYPE text"
HEADERS = """INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)
SELECT {topic}, 'headers', array_fill('nn'::text, ARRAY[50000]), array_fill('vv'::text, ARRAY[50000])
FROM generate_series(1, 80)"""
TOO_LARGE = """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) VALUES
    ({topic}, 'a value', repeat('v', 300000000), '{{}}', '{{}}'),
    ({topic}, 'a header', NULL, ARRAY['n'], ARRAY[repeat('v', 200000000)]),
    ({topic}, 'headers', NULL, array_fill('nn'::text, ARRAY[9000000]), array_fill('vv'::text, ARRAY[9000000]))"""
PARKED = """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT 'to-be-made-' || {topic}, 'parked', repeat('v', 900000) FROM generate_series(1, 400)"""

KEYS, FEW = 1_500_000, 90_000
MANY_KEYS = f"""INSERT INTO outbox_parked (
    id, create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values, transaction_id, incarnation, cause
)
SELECT n, now(), {{topic}} || CASE WHEN n > {KEYS} THEN '-of-few' ELSE '' END, 'parked-' || n, ARRAY[]::text[],
    ARRAY[]::text[], '3', 1, 'too_large'
FROM generate_series(1, {KEYS + FEW}) AS n"""
BEHIND_THEM = f"""INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT {{topic}}, 'parked-' || n, 'must wait' FROM generate_series(1, {KEYS}, {KEYS // 1000}) AS n"""
WITH_THEM = 125
"""Megabytes. A leader that knew every parked key would need more than 200."""


def execute(innocents: Innocents, statement: str) -> None:
    with psycopg.connect(innocents.outbox.database, autocommit=True) as connection:
        parts = {"topic": sql.Literal(innocents.outbox.topic)}
        connection.execute(sql.SQL(statement).format(**parts))  # type: ignore[arg-type]


def is_answered(innocents: Innocents) -> bool:
    return innocents.outbox.query("SELECT count(*) FROM outbox_parked WHERE requested IS NOT NULL") == [(0,)]


@pytest.mark.long
def test_headers_count(innocents: Innocents) -> None:
    with innocents.harvested():
        innocents.around(HEADERS)
        innocents.stand(named=None)
        innocents.stay_small()
        assert innocents.outbox.query("SELECT count(*) FROM outbox_parked") == [(0,)]


@pytest.mark.long(mode="atomic")
@pytest.mark.long(mode="at least once")
@pytest.mark.parametrize("mode", ["single", "atomic", "at least once"])
def test_what_is_too_large_is_not_read(innocents: Innocents) -> None:
    execute(innocents, LARGE_VALUES)
    with innocents.harvested():
        innocents.around(TOO_LARGE)
        parked = "SELECT kafka_key, cause FROM outbox_parked ORDER BY kafka_key"
        wanted = [(name, "too_large") for name in ("a header", "a value", "headers")]
        innocents.wait_until(lambda: innocents.outbox.query(parked) == wanted, "they are not parked")
        innocents.stand(named=None)
        assert "a header" in innocents.command("parked", "list")
        innocents.stay_small()


@pytest.mark.long(mode="atomic")
@pytest.mark.long(mode="at least once")
def test_parked_records_are_retried_a_few_at_a_time(innocents: Innocents) -> None:
    execute(innocents, LARGE_VALUES)
    with innocents.harvested():
        innocents.around(PARKED)
        for _ in range(3):
            innocents.outbox.query("UPDATE outbox_parked SET requested = 'retry' RETURNING id")
            innocents.wait_until(lambda: is_answered(innocents), "not answered")
            innocents.around("SELECT 1")
        innocents.stand(named=None)
        innocents.stay_small()


@pytest.mark.long(mode="atomic")
@pytest.mark.long(mode="at least once")
def test_a_leader_stays_small_however_many_keys_are_parked(innocents: Innocents) -> None:
    with innocents.harvested() as leader:
        execute(innocents, MANY_KEYS)
        leader.popen.kill()
    with innocents.harvested():  # takes over, and finds them
        innocents.around(BEHIND_THEM)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "records behind parked ones are not parked")
        assert innocents.outbox.query("SELECT count(*) FROM outbox_parked") == [(KEYS + FEW + 1000,)]
        innocents.around("SELECT 1")
        innocents.stand(named=None)
        innocents.stay_small(most=WITH_THEM)
