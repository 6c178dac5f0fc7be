"""The port `Table`, real and simulated, passes one suite. Here: what it holds of an outbox with several clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from support.tables_under_test import TableUnderTest, pending, record

from airflow_outbox.errors import FencedError
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Parked
from airflow_outbox.values.fence import PRIMARY, LedgerPosition, LedgerRow, Skipped
from airflow_outbox.values.pages import ID, KEY, PageSnapshot
from airflow_outbox.values.records import Snapshot


async def test_the_rows_of_backups_are_kept_beside_the_primarys(table: TableUnderTest) -> None:
    table.back_up(["b", "c"])
    view, witness = uuid4(), LedgerPosition("ledger", 7, 40, 99)
    assert (await table.one.take_over(view)).backups == {"b": LedgerRow(), "c": LedgerRow()}
    backups = {"b": LedgerRow(replace(witness, topic_id="b's", offset=4), ("b.0",)), "c": LedgerRow(witness, ("c.0",))}
    how: Any = {"delivery": "exactly_once", "witness": witness, "transactional_ids": ["one"]}
    await table.one.begin(view, **how, backups=backups)
    fence = await table.one.fence(view)
    assert (fence.witness, fence.transactional_ids, fence.backups) == (witness, ("one",), backups)
    assert fence.on("b").producers == {"b.0"}
    later = replace(backups["b"].witness, batch=8, offset=50)
    await table.one.heartbeat(view, published=0, in_flight=0, rate=0, witness={PRIMARY: witness, "b": later})
    assert (await table.one.fence(view)).backups == {"b": replace(backups["b"], witness=later), "c": backups["c"]}


async def test_producers_are_noted_besides_those_before(table: TableUnderTest) -> None:
    table.back_up(["b"])
    old, view, witness = uuid4(), uuid4(), LedgerPosition("ledger", 7, 40, 99)
    await table.one.take_over(old)
    how: Any = {"delivery": "exactly_once", "witness": witness, "transactional_ids": ["one"]}
    await table.one.begin(old, **how, backups={"b": LedgerRow(witness, ("b.0",))})
    await table.other.take_over(view)
    await table.other.note_producers(view, "b", ["b.0", "b.1"])
    await table.other.note_producers(view, PRIMARY, ["two"])
    fence = await table.other.fence(view)
    assert (fence.transactional_ids, fence.backups["b"].transactional_ids) == (("one", "two"), ("b.0", "b.1"))
    assert fence.begun_view == old
    with pytest.raises(FencedError):
        await table.one.note_producers(old, "b", ["b.2"])


async def test_committed_rows_come_in_the_order_in_which_they_were_published(table: TableUnderTest) -> None:
    view = uuid4()
    table.commit(pending(4))
    await table.one.take_over(view)
    page = await table.one.read(PageSnapshot(), max_records=9, max_bytes=10**9, transaction_ids=False)
    rows = await table.one.committed_rows([3, 1, 77, 4], [], page.snapshot)
    assert [row[ID] for row in rows] == [3, 1, 4]
    assert [row[:7] for row in rows] == [page.rows[number - 1][:7] for number in (3, 1, 4)]
    assert await table.one.committed_rows([3], [], Snapshot(1, 1)) == []
    await table.one.park(view, [Parked("too_large", "simulated", ((2, 3),))], page.snapshot)
    parked = await table.one.committed_rows([1], [2, 1], page.snapshot)
    assert [(row[ID], row[KEY]) for row in parked] == [(1, "k1"), (2, "k3"), (1, "k2")]


async def _published(table: TableUnderTest, view: UUID) -> Entry:
    """Records 1 to 4 are stashed, 2 and 3 of them parked. The entry of a batch with 4, 1 and the parked 3."""
    table.commit(pending(4))
    page = await table.one.read(PageSnapshot(), max_records=9, max_bytes=10**9, transaction_ids=False)
    await table.one.park(view, [Parked("too_large", "simulated", ((2, 3),))], page.snapshot)
    extents = (Extent("t", 0, 7, 9, 3),)
    return Entry(8, view, 1, page.snapshot, ((4, 4), (1, 1)), extents, unparked=((2, 2),), outbox_id=view, shard=0)


async def test_what_a_cluster_is_owed_is_kept_as_it_was_published(table: TableUnderTest) -> None:
    table.back_up(["b"])
    view, successor = uuid4(), uuid4()
    await table.one.take_over(view)
    entry = await _published(table, view)
    await table.one.detach(view, successor, ["b"], "it is away")
    with pytest.raises(FencedError):
        await table.one.keep_owed(view, entry)
    await table.one.take_over(view, after=[successor])
    await table.one.keep_owed(view, entry)
    await table.one.purge_published(view, entry.ids(), entry.snapshot, batch=8)
    await table.one.unpark(view, [2], batch=8)
    await table.one.keep_owed(view, entry)  # again, by a successor: nothing of it is there any more
    assert await table.one.owed_entries(after=7, upto=9, most=9) == [entry]
    assert await table.one.owed_entries(after=8, upto=9, most=9) == []
    rows = await table.one.owed_rows(8)
    assert [row[ID] for row in rows] == [1, 2, 3]
    assert [row[1:7] for row in rows] == [record[1:7] for record in (pending(4)[3], pending(4)[0], pending(4)[2])]


async def test_a_cluster_that_counts_again_is_owed_nothing(table: TableUnderTest) -> None:
    table.back_up(["b", "c"])
    first, view, last = uuid4(), uuid4(), uuid4()
    before = (await table.one.take_over(first)).membership
    await table.one.detach(first, view, ["b"], "it is away")
    fence = await table.one.take_over(view, after=[view])
    assert (set(fence.backups), set(fence.owed), fence.membership) == ({"c"}, {"b"}, before + 1)
    await table.one.keep_owed(view, Entry(1, view, 1, Snapshot(1, 1), (), (), outbox_id=view, shard=0))
    row = LedgerRow(LedgerPosition("b's", 1, 40), ("b.0",))
    with pytest.raises(FencedError):
        await table.one.attach({0: first}, last, "b", {0: row})
    await table.one.attach({0: view}, last, "b", {0: row})
    with pytest.raises(FencedError):
        await table.one.require_fence(view)
    fence = await table.one.take_over(last, after=[last])
    assert (set(fence.backups), fence.owed, fence.membership) == ({"b", "c"}, {}, before + 2)
    assert (fence.backups["b"].transactional_ids, fence.backups["b"].witness.topic_id) == (("b.0",), "b's")
    assert await table.one.owed_entries(after=0, upto=9, most=9) == []


async def test_a_request_for_a_cluster_can_be_refused(table: TableUnderTest) -> None:
    table.back_up(["b"])
    first, view = uuid4(), uuid4()
    await table.one.take_over(first)
    await table.one.detach(first, view, ["b"], "it is away")
    table.ask_attach("b")
    fence = await table.one.take_over(view, after=[view])
    assert (fence.request.attach, fence.request.attach_how) == ("b", None)
    assert (await table.one.heartbeat(view, published=0, in_flight=0, rate=0)).request.attach == "b"
    with pytest.raises(FencedError):
        await table.one.refuse_attach(first, "b", "it is another one")
    assert not await table.one.close_attach(view, "c")
    assert not (await table.one.fence(view)).request.attaches
    assert await table.one.close_attach(view, "b")
    assert (await table.one.fence(view)).request.attaches
    with pytest.raises(FencedError):
        await table.one.close_attach(first, "b")
    await table.one.refuse_attach(view, "c", "somebody has asked for another one since")
    assert (await table.one.fence(view)).request.attach == "b"
    await table.one.refuse_attach(view, "b", "it is another one")
    assert not await table.one.close_attach(view, "b"), "it was refused meanwhile"
    request = (await table.one.fence(view)).request
    assert (request.attach, request.attaches) == (None, False)


async def test_how_far_a_cluster_is_caught_up_is_known_and_what_it_does_not_get(table: TableUnderTest) -> None:
    table.back_up(["b"])
    first, view = uuid4(), uuid4()
    await table.one.take_over(first)
    await table.one.detach(first, view, ["b"], "it is away")
    await table.one.take_over(view, after=[view])
    assert await table.one.last_owed() == 0
    for batch in (1, 2, 3):
        await table.one.keep_owed(view, Entry(batch, view, 1, Snapshot(1, 1), (), (), outbox_id=view, shard=0))
    assert (await table.one.last_owed(), await table.one.left_to_catch_up("b")) == (3, 3)
    assert [entry.batch for entry in await table.one.owed_entries(after=0, upto=9, most=2)] == [1, 2]
    await table.one.note_caught_up(view, "b", LedgerPosition("b's", 2, 40))
    assert await table.one.left_to_catch_up("b") == 1
    assert (await table.one.fence(view)).owed["b"].witness.batch == 2
    skipped = Skipped(1, ((4, 5), (9, 9)), ((2, 2),))
    await table.one.skip(view, "b", skipped)
    assert (await table.one.fence(view)).owed["b"].skipped == skipped
    for late in (table.one.note_caught_up(first, "b", LedgerPosition()), table.one.skip(first, "b", skipped)):
        with pytest.raises(FencedError):
            await late


async def test_records_that_wait_are_unpublished(table: TableUnderTest) -> None:
    view = uuid4()
    table.commit(pending(4))
    await table.one.take_over(view)
    page = await table.one.read(PageSnapshot(), max_records=9, max_bytes=10**9, transaction_ids=False)
    await table.one.park(view, [Parked("too_large", "simulated", ((2, 3),))], page.snapshot)
    await table.one.purge_published(view, [1], page.snapshot)
    for ids, numbers, waits in (([1, 77], [], False), ([1, 4], [], True), ([], [7], False), ([2], [2], True)):
        assert await table.one.are_unpublished(ids, numbers) is waits


async def test_more_than_may_be_kept_is_forgotten_from_the_oldest_on(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    for batch in (1, 2, 3):
        extents = (Extent("t", 0, 7, 9, 1),)
        table.commit([record(batch)._replace(value="".join(uuid4().hex for _ in range(160)))])
        page = await table.one.read(PageSnapshot(), max_records=9, max_bytes=10**9, transaction_ids=False)
        entry = Entry(batch, view, 1, page.snapshot, ((batch, batch),), extents, outbox_id=view, shard=0)
        await table.one.keep_owed(view, entry)
    assert await table.one.drop_owed(view, seconds=3600, most_bytes=10**6) == 0
    assert await table.one.drop_owed(view, seconds=3600, most_bytes=12_000) == 1
    assert [entry.batch for entry in await table.one.owed_entries(after=0, upto=9, most=9)] == [2, 3]
    with pytest.raises(FencedError):
        await table.one.drop_owed(uuid4(), seconds=3600, most_bytes=1)
