"""The port `Table`, real and simulated, passes one suite: what the engine relies on, so that the simulation can be
trusted. Here: windows and their pages, and purges by exact ids.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from support.tables_under_test import ALL, TableUnderTest, pending, record

from airflow_outbox.values.pages import SIZE, TRANSACTION_ID, Length, Page, PageSnapshot
from airflow_outbox.values.records import Snapshot


def ids(page: Page) -> list[int]:
    return [row[0] for row in page.rows]


async def read(table: TableUnderTest, reading: PageSnapshot, **bounds: Any) -> Page:
    return await table.one.read(reading, **{**ALL, "transaction_ids": False, **bounds})


async def test_a_window_is_what_became_visible_since_the_one_before(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    slow, undone, twofold = table.begin(), table.begin(), table.begin()
    slow.insert(1, 7)
    undone.insert(2)
    twofold.insert(4)
    end_twofold = twofold.prepare()
    table.commit([record(3), record(5)])
    first = await read(table, PageSnapshot())
    assert ids(first) == [3, 5]
    assert first.complete
    undone.rollback()
    table.commit([record(6)])
    second = await read(table, PageSnapshot(after=first.snapshot))
    assert ids(second) == [6]
    slow.commit()
    third = await read(table, PageSnapshot(after=second.snapshot))
    assert ids(third) == [1, 7]
    end_twofold()
    fourth = await read(table, PageSnapshot(after=third.snapshot))
    assert ids(fourth) == [4]
    assert ids(await read(table, PageSnapshot(after=fourth.snapshot))) == []


async def test_a_reading_that_may_wait_finds_what_is_committed_meanwhile(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    page = await read(table, PageSnapshot())
    lazy, late = table.begin(), table.begin()
    lazy.insert(1)
    lazy.commit(synchronous=False)
    first = await read(table, PageSnapshot(after=page.snapshot), wait=0.05)
    assert ids(first) == [1]
    late.insert(2)
    await table.one.flush(first.written)
    page = await read(table, PageSnapshot(after=first.snapshot), wait=0.05)
    assert (ids(page), page.complete) == ([], True)
    assert page.flushed >= first.written
    assert (page.table_oid, page.file_number) == (first.table_oid, first.file_number)
    reading = asyncio.create_task(read(table, PageSnapshot(after=page.snapshot), wait=20))
    await asyncio.sleep(0.1)
    late.commit()
    page = await reading
    while not page.rows:  # a transaction of another database has ended the wait
        page = await read(table, PageSnapshot(after=page.snapshot), wait=20)
    assert ids(page) == [2]


async def test_ids_that_were_drawn_early_are_found_when_they_are_committed(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    early = table.begin()
    number = early.draw()
    later = table.begin()
    later.insert(later.draw())
    later.commit()
    first = await read(table, PageSnapshot())
    assert ids(first) == [number + 1]
    early.insert(number)
    early.commit()
    assert ids(await read(table, PageSnapshot(after=first.snapshot))) == [number]


@pytest.mark.parametrize("transaction_id", [3, 2**40], ids=["past", "future"])
async def test_a_loaded_record_is_of_the_transaction_that_loads_it(table: TableUnderTest, transaction_id: int) -> None:
    await table.one.take_over(uuid4())
    table.commit([record(1)])
    first = await read(table, PageSnapshot())
    loader = table.begin()
    loader.load(3, transaction_id)
    table.commit([record(2)])
    second = await read(table, PageSnapshot(after=first.snapshot))
    assert ids(second) == [2]
    loader.commit()
    third = await read(table, PageSnapshot(after=second.snapshot), transaction_ids=True)
    assert ids(third) == [3]
    assert third.snapshot.sees(third.rows[0][TRANSACTION_ID] or 0)
    assert not second.snapshot.sees(third.rows[0][TRANSACTION_ID] or 0)
    assert ids(await read(table, PageSnapshot(after=third.snapshot))) == []


async def test_the_pages_of_a_window_are_within_its_snapshot(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    late = table.begin()
    late.insert(4)
    table.commit([record(number) for number in (1, 2, 3, 5, 6)])
    first = await read(table, PageSnapshot(), max_records=2)
    assert (ids(first), first.complete) == ([1, 2], False)
    late.commit()
    table.commit([record(7)])
    second = await read(table, PageSnapshot(within=first.snapshot, above=2), max_records=2)
    assert (ids(second), second.complete) == ([3, 5], False)
    third = await read(table, PageSnapshot(within=first.snapshot, above=5), max_records=2)
    assert (ids(third), third.complete) == ([6], True)
    following = await read(table, PageSnapshot(after=first.snapshot), max_records=1)
    assert (ids(following), following.complete) == ([4], False)
    last = await read(table, PageSnapshot(after=first.snapshot, within=following.snapshot, above=4))
    assert (ids(last), last.complete) == ([7], True)


async def test_a_page_is_no_larger_than_the_bound_on_bytes_but_for_a_record_by_itself(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    records = [record._replace(header_names=[], header_values=[]) for record in pending(3)]
    table.commit(records)
    size = records[0].size
    page = await read(table, PageSnapshot(), max_bytes=1)
    assert (ids(page), page.complete) == ([1], False)
    page = await read(table, PageSnapshot(), max_bytes=2 * size + 1)
    assert (ids(page), page.complete) == ([1, 2], False)
    assert [row[SIZE] for row in page.rows] == [size, size]
    for _ in range(2):  # what was large makes pages small for once
        page = await read(table, PageSnapshot(), max_bytes=4 * size)
    assert ids(page) == [1, 2, 3]
    assert list(page.rows[0][:7]) == list(records[0])


async def test_headers_count(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    table.commit(pending(3))
    page = await read(table, PageSnapshot())
    assert [row[SIZE] for row in page.rows] == [record.size for record in pending(3)]
    assert page.rows[0][SIZE] > len("k1" + "value" + "h" + "1")


async def test_a_record_tells_its_transaction_and_a_transaction_its_length(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    one, other = table.begin(), table.begin()
    one.insert(1, 3)
    other.insert(2, 5, 9)
    one.commit()
    other.commit()
    page = await read(table, PageSnapshot(), transaction_ids=True)
    first, second = page.rows[0][TRANSACTION_ID], page.rows[1][TRANSACTION_ID]
    assert first is not None
    assert second is not None
    assert [row[TRANSACTION_ID] for row in page.rows] == [first, second, first, second, second]
    assert all(page.snapshot.sees(number) for number in (first, second))
    assert await table.one.lengths([first, second, 2]) == {first: Length(2, 3), second: Length(3, 9)}
    assert [row[TRANSACTION_ID] for row in (await read(table, PageSnapshot())).rows] == [None] * 5


async def test_a_purge_takes_exact_ids_as_far_as_the_snapshot_sees_them(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    late = table.begin()
    late.insert(2)
    table.commit([record(1), record(3), record(4)])
    page = await read(table, PageSnapshot())
    late.commit()
    table.commit([record(5)])
    await table.one.purge_published(view, [1, 2, 3, 5, 77], page.snapshot)
    assert ids(await read(table, PageSnapshot())) == [2, 4, 5]


@pytest.mark.parametrize("step", [1, 2, 20], ids=["one run", "others between", "scattered"])
async def test_a_purge_takes_no_other_ids_between(table: TableUnderTest, step: int) -> None:
    view = uuid4()
    await table.one.take_over(view)
    table.commit([record(number) for number in range(1, 102)])
    snapshot = (await read(table, PageSnapshot())).snapshot
    published = [number for number in range(11, 92) if number % step == 0 and number not in (20, 40)]
    await table.one.purge_published(view, published[::-1], snapshot)
    assert ids(await read(table, PageSnapshot())) == sorted(set(range(1, 102)) - set(published))


async def test_what_is_seen_is_on_disk_after_a_flush(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    writer = table.begin()
    writer.insert(1)
    writer.commit(synchronous=False)
    page = await read(table, PageSnapshot())
    assert ids(page) == [1]
    assert page.flushed <= page.written
    assert await table.one.flush(page.written) >= page.written
    again = await read(table, PageSnapshot())
    assert again.flushed >= page.written
    assert (await table.one.purge_published(view, [1], again.snapshot)).flushed >= page.written


async def test_a_snapshot_is_the_same_as_text(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    writer = table.begin()
    writer.insert(1)
    table.commit([record(2)])
    snapshot = (await read(table, PageSnapshot())).snapshot
    assert Snapshot.parse(str(snapshot)) == snapshot
    assert snapshot.in_progress  # the writer, and perhaps the server itself, in any database
    writer.rollback()
