"""Slots: a record belongs to one of 64, whatever it is, and a shard reads its own slots' records by indexes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support.harvesting import PATIENCE, wait_until
from support.leading import NAME
from support.slots import slot_of

from airflow_outbox.errors import ConfigurationError, FencedError, TakeOverError
from airflow_outbox.postgres.columns import read_columns
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.layout import ask_layout, read_layout, write_layout
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.slots import make_indexes, missing_indexes, slot
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.pages import Page, PageSnapshot, first_cursors

SHARDS = 4
STASH = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
SELECT 't' || number %% 3, 'k' || number %% 50, repeat('x', (number %% 7) * %(size)s)
FROM generate_series(1, %(records)s) AS number
"""


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def sharded(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    init_outbox(connection, NAME)
    make_indexes(connection, NAME)
    ask_layout(connection, NAME, shards=SHARDS)
    return connection


def reckoned(connection: psycopg.Connection[Any], topic: str, key: str | bytes | None) -> int:
    query = psycopg.sql.SQL("SELECT {} FROM outbox").format(slot(read_columns(connection, NAME)))
    with connection.transaction(force_rollback=True):
        connection.execute("ALTER TABLE outbox ALTER COLUMN kafka_key DROP NOT NULL")
        connection.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES (%s, %s)", [topic, key])
        [(number,)] = connection.execute(query).fetchall()
    return int(number)


@pytest.mark.parametrize("key_type", ["varchar(100)", "text", "bytea"])
def test_the_slot_of_a_topic_and_a_key_is_fixed(connection: psycopg.Connection[Any], key_type: str) -> None:
    init_outbox(connection, NAME, key_type=key_type)
    for topic, key in [("orders", "17"), ("orders", ""), ("orders", None), ("ord", "ers17"), ("ünï", "cödé")]:
        given = key.encode() if key is not None and key_type == "bytea" else key
        assert reckoned(connection, topic, given) == slot_of(topic, key)
    assert len({slot_of("t", str(number)) for number in range(2_000)}) == 64


def test_one_shard_has_no_indexes_and_no_slots(connection: psycopg.Connection[Any], database: str) -> None:
    init_outbox(connection, NAME)
    assert missing_indexes(connection, NAME) == ["transaction_id", "id"]
    assert read_layout(connection, NAME) == Layout(1, 1, None)
    with closing(OutboxTable(connect(database, purpose="test"), NAME)) as table:
        assert table.take_over(uuid4(), [], member="test").slots is None


def test_the_indexes_are_made_while_others_write(connection: psycopg.Connection[Any], database: str) -> None:
    """The making waits for transactions that were open before it, and nobody waits for it."""
    init_outbox(connection, NAME)
    stash = "INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k')"
    with (
        ThreadPoolExecutor() as threads,
        psycopg.connect(database, autocommit=True) as maker,
        psycopg.connect(database) as writer,
    ):
        writer.execute(stash)
        making = threads.submit(make_indexes, maker, NAME)
        waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        wait_until(lambda: connection.execute(waits, [maker.info.backend_pid]).fetchall())
        with psycopg.connect(database, options=f"-c lock_timeout={PATIENCE:.0f}s") as other:
            other.execute(stash)
            other.execute("DELETE FROM outbox")  # as a harvester purges
        assert not making.done()
        writer.commit()
        assert len(making.result(PATIENCE)) == 2
    assert connection.execute("SELECT count(*) FROM outbox").fetchall() == [(1,)]
    assert missing_indexes(connection, NAME) == []


def test_an_index_whose_making_was_interrupted_is_made_again(connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, NAME)
    assert len(make_indexes(connection, NAME)) == 2
    assert make_indexes(connection, NAME) == []
    connection.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_slot_id'::regclass")
    assert missing_indexes(connection, NAME) == ["id"]
    assert make_indexes(connection, NAME) == ['made an index of "outbox" by slot and id']
    assert missing_indexes(connection, NAME) == []


def test_shards_need_their_indexes(connection: psycopg.Connection[Any]) -> None:
    init_outbox(connection, NAME)
    with pytest.raises(ConfigurationError, match="no index by slot and transaction_id and id"):
        ask_layout(connection, NAME, shards=2)


def tables(database: str, shards: int = SHARDS) -> list[OutboxTable]:
    return [OutboxTable(connect(database, purpose="test"), NAME, shard=number) for number in range(shards)]


def read(table: OutboxTable, reading: PageSnapshot, *, max_records: int, max_bytes: int = 10**9) -> Iterator[Page]:
    """The pages of a window."""
    while True:
        page = table.windows.read(reading, max_records=max_records, max_bytes=max_bytes, transaction_ids=False)
        yield page
        if page.complete:
            return
        reading = PageSnapshot(reading.after, reading.within or page.snapshot, cursors=page.cursors)


@pytest.mark.parametrize(("max_records", "max_bytes"), [(10_000, 10**9), (40, 10**9), (3, 10**9), (100, 700)])
def test_shards_read_every_record_once_and_each_lane_in_order(
    sharded: psycopg.Connection[Any], database: str, max_records: int, max_bytes: int
) -> None:
    sharded.execute(STASH, {"records": 600, "size": 30})
    leaders = tables(database)
    after = []
    for window in range(2):
        found: list[tuple[Any, ...]] = []
        for number, table in enumerate(leaders):
            table.prefer_indexes()
            fence = table.take_over(uuid4(), [], member="test")
            assert fence.slots == tuple(range(number, 64, SHARDS))
            first = PageSnapshot(after=after[number] if window else None, cursors=first_cursors(fence.slots))
            assert table.windows.first_reading(None, seconds=9) == PageSnapshot()
            pages = list(read(table, first, max_records=max_records, max_bytes=max_bytes))
            assert all(len(page.rows) <= max_records for page in pages)
            assert all(len(page.rows) == 1 or sum(row[7] for row in page.rows) <= max_bytes for page in pages)
            found += [row for page in pages for row in page.rows]
            after = [*after[:number], pages[0].snapshot, *after[number + 1 :]]
        assert len(found) == len({row[0] for row in found}) == (30 if window else 600)
        assert {len(row) for row in found} == {9}
        for lane in {(row[1], row[2]) for row in found}:
            ids = [row[0] for row in found if (row[1], row[2]) == lane]
            assert ids == sorted(ids)
        sharded.execute(STASH, {"records": 30, "size": 30})
    for table in leaders:
        table.close()


def test_a_large_slot_holds_no_other_up(sharded: psycopg.Connection[Any], database: str) -> None:
    sharded.execute("INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', 'hot' FROM generate_series(1, 1000)")
    sharded.execute(STASH, {"records": 200, "size": 1})
    with closing(OutboxTable(connect(database, purpose="test"), NAME, shard=slot_of("t", "hot") % SHARDS)) as table:
        fence = table.take_over(uuid4(), [], member="test")
        pages = read(table, PageSnapshot(cursors=first_cursors(fence.slots)), max_records=320)
        first, second = next(pages), next(pages)
        assert {row[2] for row in first.rows} > {"hot"}
        assert {row[2] for row in second.rows} == {"hot"}
        assert len(second.rows) == 320  # alone, it has all the room


def test_a_new_window_of_a_shard_leaves_older_records_out(sharded: psycopg.Connection[Any], database: str) -> None:
    """In a small table, Postgres would rather scan whole slots."""
    sharded.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")  # it would look at blocks, too
    sharded.execute(STASH, {"records": 20_000, "size": 10})
    sharded.execute("VACUUM (ANALYZE) outbox")
    with closing(OutboxTable(connect(database, purpose="test"), NAME, shard=0)) as table:
        table.prefer_indexes()
        slots = table.take_over(uuid4(), [], member="test").slots
        after = next(read(table, PageSnapshot(cursors=first_cursors(slots)), max_records=200)).snapshot
        sharded.execute(STASH, {"records": 150, "size": 1})
        sharded.execute("SELECT pg_stat_force_next_flush()")
        before = blocks(table)
        for _ in range(10):  # a plan for any values may be taken from the sixth time on
            [page] = read(table, PageSnapshot(after=after, cursors=first_cursors(slots)), max_records=10_000)
            assert 0 < len(page.rows) < 150
        assert blocks(table) - before < 10 * 150


def blocks(table: OutboxTable) -> int:
    """How many of the table's blocks this connection has looked at, its indexes not counted."""
    table.connection.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT heap_blks_read + heap_blks_hit FROM pg_statio_user_tables WHERE relname = 'outbox'"
    [(found,)] = table.connection.execute(query).fetchall()
    return int(found)


def test_another_layout_voids_all_views_and_keeps_what_is_published(
    sharded: psycopg.Connection[Any], database: str
) -> None:
    leaders = tables(database)
    views = {number: uuid4() for number in range(SHARDS)}
    for number, table in enumerate(leaders):
        table.take_over(views[number], [], member="test")
        sharded.execute(
            "UPDATE outbox_shard SET watermark = %s::pg_snapshot, highest_id = %s WHERE shard = %s",
            [f"{100 + number}:{200 + number}:{100 + number}", 10 * number, number],
        )
    with pytest.raises(FencedError):
        write_layout(leaders[0].connection, NAME, views={**views, 1: uuid4()}, shards=2)
    ask_layout(sharded, NAME, shards=2)
    assert read_layout(sharded, NAME) == Layout(2, SHARDS, 2)
    with pytest.raises(TakeOverError, match="can't be led now"):
        leaders[1].take_over(uuid4(), [], member="test")
    leaders[0].require_fence(views[0])
    ask_layout(sharded, NAME, shards=None)
    assert read_layout(sharded, NAME) == Layout(2, SHARDS, None), "it is withdrawn"
    ask_layout(sharded, NAME, shards=2)
    write_layout(leaders[0].connection, NAME, views=views, shards=2)
    assert read_layout(sharded, NAME) == Layout(3, 2, None)
    for number, table in enumerate(leaders):
        with pytest.raises(FencedError):
            table.require_fence(views[number])
    rows = sharded.execute(
        "SELECT watermark::text, highest_id, cardinality(slots), layout FROM outbox_shard ORDER BY 3 DESC"
    )
    assert set(rows.fetchall()[:2]) == {("100:200:100,101,102,103", 30, 32, 3)}
    with pytest.raises(TakeOverError, match="can't be led now"):
        leaders[3].take_over(uuid4(), [], member="test")
    assert leaders[1].take_over(uuid4(), [], member="test").slots == tuple(range(1, 64, 2))
    assert len(sharded.execute("SELECT FROM outbox_published").fetchall()) == 2
    for table in leaders:
        table.close()
