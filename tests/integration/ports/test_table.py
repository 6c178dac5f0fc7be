"""The port `Table`, real and simulated, passes one suite: what the engine relies on, so that the simulation can be
trusted. Here: marks, and the fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from support.harvesting import PATIENCE
from support.tables_under_test import ALL, TableUnderTest, pending

from airflow_outbox.errors import FencedError, PostgresError
from airflow_outbox.values.fence import PRIMARY, LedgerPosition
from airflow_outbox.values.pages import PageSnapshot
from airflow_outbox.values.records import MarkedRecord


async def test_mark_returns_the_next_records_in_id_order_once(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    assert await table.one.mark(view, **ALL) == []
    table.commit(pending(5)[2:])
    assert await table.one.mark(view, max_records=2, max_bytes=10**9) == pending(5)[2:4]
    table.commit(pending(5)[:2])  # became visible late, with lower ids
    assert await table.one.mark(view, **ALL) == [*pending(2), pending(5)[4]]
    assert await table.one.mark(view, **ALL) == []


async def test_mark_stops_at_the_bound_on_bytes_but_always_takes_one(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    table.commit([*pending(3), MarkedRecord(4, "t", "tombstone", None, [], [], None)])
    size = pending(1)[0].size
    assert [record.id for record in await table.one.mark(view, max_records=9, max_bytes=1)] == [1]
    assert [record.id for record in await table.one.mark(view, max_records=9, max_bytes=size + 1)] == [2, 3]
    assert [record.value for record in await table.one.mark(view, max_records=9, max_bytes=1)] == [None]


async def test_a_new_view_marks_what_the_old_one_left(table: TableUnderTest) -> None:
    old, new = uuid4(), uuid4()
    table.commit(pending(3))
    await table.one.take_over(old)
    await table.one.mark(old, **ALL)
    await table.one.purge(old, [2])
    await table.other.take_over(new)
    assert [record.id for record in await table.other.mark(new, **ALL)] == [1, 3]


async def test_the_table_holds_marks_until_the_marked_records_are_gone(table: TableUnderTest) -> None:
    view = uuid4()
    table.commit(pending(3))
    await table.one.take_over(view)
    assert not await table.one.holds_marks()
    await table.one.mark(view, max_records=2, max_bytes=10**9)
    assert await table.one.holds_marks()
    await table.one.purge(view, [1])
    assert await table.one.holds_marks()
    await table.one.reset(view, [2])
    assert not await table.one.holds_marks()


async def test_a_fenced_view_changes_nothing(table: TableUnderTest) -> None:
    old, new = uuid4(), uuid4()
    table.commit(pending(3))
    await table.one.take_over(old)
    await table.one.mark(old, max_records=2, max_bytes=10**9)
    await table.other.take_over(new)
    for attempt in (
        table.one.mark(old, **ALL),
        table.one.purge(old, [1]),
        table.one.reset(old, [1]),
        table.one.heartbeat(old, published=1, in_flight=0, rate=0),
        table.one.require_fence(old),
    ):
        with pytest.raises(FencedError):
            await attempt
    assert [record.id for record in await table.other.mark(new, **ALL)] == [1, 2, 3]
    await table.other.purge(new, [1, 2, 3])
    with pytest.raises(FencedError):
        await table.one.mark(old, **ALL)


async def test_purge_takes_only_what_the_view_has_marked(table: TableUnderTest) -> None:
    view = uuid4()
    table.commit(pending(2))
    await table.one.take_over(view)
    await table.one.mark(view, max_records=1, max_bytes=10**9)
    await table.one.purge(view, [1, 2, 77])
    assert not await table.one.is_empty()
    assert [record.id for record in await table.one.mark(view, **ALL)] == [2]
    await table.one.purge(view, [2])
    assert await table.one.is_empty()


async def test_what_is_reset_is_marked_again_by_the_same_view(table: TableUnderTest) -> None:
    view = uuid4()
    table.commit(pending(2))
    await table.one.take_over(view)
    await table.one.mark(view, **ALL)
    await table.one.reset(view, [2])
    assert [record.id for record in await table.one.mark(view, **ALL)] == [2]


async def test_without_a_take_over_there_is_no_connection(table: TableUnderTest) -> None:
    with pytest.raises(PostgresError):
        await table.one.mark(uuid4(), **ALL)
    await table.one.take_over(uuid4())
    await table.one.close()
    with pytest.raises(PostgresError):
        await table.one.purge(uuid4(), [1])


async def test_the_fence_row_keeps_what_it_is_told(table: TableUnderTest) -> None:
    view, witness = uuid4(), LedgerPosition("ledger", 7, 40, 99)
    found = await table.one.take_over(view)
    assert (found.delivery, found.transactional_ids, found.halted, found.witness) == (None, (), None, LedgerPosition())
    assert found.recorded == found.present
    await table.one.begin(view, delivery="exactly_once", witness=witness, transactional_ids=["one", "two"])
    await table.one.begin(view, delivery="exactly_once", witness=witness)
    fence = await table.one.fence(view)
    assert (fence.delivery, fence.transactional_ids, fence.witness) == ("exactly_once", ("one", "two"), witness)
    pulse = await table.one.heartbeat(view, published=1, in_flight=0, rate=0)
    assert (await table.one.fence(view)).witness == witness
    later = replace(witness, batch=8, offset=50, highest_id=120)
    assert (
        await table.one.heartbeat(view, published=0, in_flight=0, rate=0, witness={PRIMARY: later})
    ).beats == pulse.beats + 1
    assert fence.beats < pulse.beats
    successor = await table.other.take_over(uuid4())
    assert (successor.witness, successor.beats) == (later, pulse.beats + 1)


async def test_the_fence_row_tells_how_far_ids_and_transactions_have_come(table: TableUnderTest) -> None:
    view = uuid4()
    before = await table.one.take_over(view)
    assert (before.last_drawn, before.newest_transaction_id) == (0, 0)
    writer = table.begin()
    number = writer.draw()
    writer.insert(number)
    assert (await table.one.heartbeat(view, published=0, in_flight=0, rate=0)).last_drawn == number
    writer.commit()
    after = await table.one.fence(view)
    assert after.last_drawn == number
    assert before.next_transaction_id < after.next_transaction_id
    assert after.newest_transaction_id == 0  # of those that have not begun


async def test_what_was_halted_stays_halted(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    await table.one.halt(uuid4(), "of a view that is over")
    assert (await table.one.fence(view)).halted is None
    await table.one.halt(view, "restored")
    assert (await table.one.fence(view)).halted == "restored"
    assert (await table.other.take_over(uuid4())).halted == "restored"


async def test_who_leaves_may_be_followed_and_takes_nothing_from_a_successor(table: TableUnderTest) -> None:
    view, new = uuid4(), uuid4()
    await table.one.take_over(view)
    assert [(look.shard, look.view, look.is_led) for look in await table.other.looks()] == [(0, view, True)]
    await table.one.leave(view)
    [look] = await table.other.looks()
    assert (look.view, look.is_led, look.hands_over) == (view, False, False)
    assert 0 <= look.silent_for < PATIENCE
    await table.other.take_over(new, after=[view])
    await table.one.leave(view)
    assert [(look.view, look.is_led) for look in await table.one.looks()] == [(new, True)]
    assert (await table.other.heartbeat(new, published=0, in_flight=0, rate=0)).beats


async def test_a_fenced_view_purges_nothing_and_tells_nothing(table: TableUnderTest) -> None:
    old, new = uuid4(), uuid4()
    table.commit(pending(2))
    await table.one.take_over(old)
    page = await table.one.read(PageSnapshot(), **ALL, transaction_ids=False)
    await table.other.take_over(new)
    for attempt in (
        table.one.purge_published(old, [1], page.snapshot),
        table.one.begin(old, delivery="exactly_once", witness=LedgerPosition("x", 1, 1, 1)),
        table.one.heartbeat(old, published=0, in_flight=0, rate=0, witness={PRIMARY: LedgerPosition("x", 1, 1, 1)}),
        table.one.fence(old),
    ):
        with pytest.raises(FencedError):
            await attempt
    assert (await table.other.fence(new)).witness == LedgerPosition()
    assert len((await table.other.read(PageSnapshot(), **ALL, transaction_ids=False)).rows) == 2


@pytest.mark.parametrize("named", [True, False], ids=["another", "its own"])
async def test_a_take_over_may_be_limited_to_what_it_follows(table: TableUnderTest, named: bool) -> None:
    first, second, third = uuid4(), uuid4(), uuid4()
    await table.one.take_over(first)
    followed: Sequence[UUID] = [first, third]
    if named:
        await table.other.take_over(second)
        with pytest.raises(FencedError):
            await table.one.take_over(uuid4(), after=followed)
        await table.other.require_fence(second)
    else:
        new = uuid4()
        await table.one.take_over(new, after=followed)
        await table.one.require_fence(new)
