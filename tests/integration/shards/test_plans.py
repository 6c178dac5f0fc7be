"""How Postgres reads one of four shards: by the indexes on slots, whatever it knows of the table's contents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import ClientCursor, sql
from support.leading import NAME

from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.layout import ask_layout
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.slots import make_indexes, slots_values
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.pages import PageSnapshot, first_cursors

SHARD, SHARDS = 1, 4
PAGE = 1_600
"""Records of a page: a hundred of each slot."""
STASH = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT 't' || number % 5, 'k' || number % 5000, repeat('x', 100) FROM generate_series(1, {}) AS number
"""
BY_TRANSACTION, BY_ID = "outbox_slot_transaction_id", "outbox_slot_id"


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME)
        connection.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")
        make_indexes(connection, NAME)
        ask_layout(connection, NAME, shards=SHARDS)
        yield connection


def scans(node: dict[str, Any], *, sorts: bool = False) -> Iterator[dict[str, Any]]:
    """The parts of a plan that read the outbox, each with its indexes, and whether what it reads is sorted."""
    if node.get("Relation Name") == "outbox":
        yield {**node, "indexes": set(indexes(node)), "sorts": sorts}
        return
    for below in node.get("Plans", []):
        yield from scans(below, sorts=sorts or "Sort" in node["Node Type"])


def indexes(node: dict[str, Any]) -> Iterator[str]:
    if "Index Name" in node:
        yield node["Index Name"]
    for below in node.get("Plans", []):
        yield from indexes(below)


def plans(table: OutboxTable, statement: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """How a statement reads the outbox: with these values, as it ran; and prepared, for whatever values come."""
    reads = table.windows.readings[statement, False]
    prepared = reads.text.decode()
    named = re.sub(r"[$](\d+)", lambda found: f"%({reads.names[int(found[1]) - 1]})s", prepared)
    typed = ClientCursor(table.connection).mogrify(named, values)
    explained = [
        f"EXPLAIN (ANALYZE, FORMAT JSON) {typed}",
        f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {prepared}",
    ]
    found: list[dict[str, Any]] = []
    for each in explained:
        with table.connection.cursor() as cursor:
            [(plan,)] = cursor.execute(sql.SQL(each), prepare=False).fetchall()  # type: ignore[arg-type]
        found += scans(plan[0]["Plan"])
    assert len(found) in (len(explained), 2 * len(explained))  # a window asks for older transactions apart
    return found


@pytest.mark.parametrize("rows", [50_000, pytest.param(5_000_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_a_shard_is_read_by_the_indexes_on_slots(connection: psycopg.Connection[Any], database: str, rows: int) -> None:
    connection.execute(STASH.format(rows).encode())
    with closing(OutboxTable(connect(database, purpose="test"), NAME, shard=SHARD)) as table:
        table.prefer_indexes()
        slots = table.take_over(uuid4(), [], member="test").slots
        whole = PageSnapshot(cursors=first_cursors(slots))
        page = table.windows.read(whole, max_records=PAGE, max_bytes=10**9, transaction_ids=False)
        assert len(page.rows) == PAGE
        connection.execute(STASH.format(rows // 50).encode())
        window = table.windows.read(
            PageSnapshot(after=page.snapshot, cursors=first_cursors(slots)),
            max_records=PAGE // 10,
            max_bytes=10**9,
            transaction_ids=False,
        )
        assert slots is not None
        assert page.cursors is not None
        assert window.cursors is not None
        given: dict[str, Any] = {
            "outbox": table.name.text(),
            "most_bytes": 10**8,
            "max_size": 10**8,
            "after": str(page.snapshot),
            "within": None,
            **slots_values(whole.cursors or (), records=PAGE),
        }
        for knows in (False, True):
            if knows:
                connection.execute("ANALYZE outbox")
            # The first window of a term, and the page after its first one.
            for cursors in (whole.cursors, page.cursors):
                for scan in plans(
                    table, "read_slots_on", {**given, "after": None, **slots_values(cursors or (), records=PAGE)}
                ):
                    assert (scan["indexes"], scan["sorts"]) == ({BY_ID}, False), (knows, scan)
                    assert scan.get("Actual Rows", 0) <= PAGE / len(slots), (knows, scan)
            # A window after others: its first page, and a further one.
            for scan in plans(table, "read_slots_window", given):
                assert scan["indexes"] == {BY_TRANSACTION}, (knows, scan)
                assert scan.get("Actual Rows", 0) * len(slots) < rows / 50, (knows, scan)
            further = {"within": str(window.snapshot), **slots_values(window.cursors, records=PAGE)}
            for scan in plans(table, "read_slots_on", {**given, **further}):
                assert (scan["indexes"], scan["sorts"]) == ({BY_ID}, False), (knows, scan)
                assert scan.get("Rows Removed by Filter", 0) == 0, (knows, scan)
