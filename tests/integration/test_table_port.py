"""The port `Table`, real and simulated, passes one suite: what the engine relies on, so that the simulation can be
trusted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import UUID, uuid4

import psycopg
import pytest
from simulation.postgres import Database, Transaction
from simulation.table import SimulatedTable
from simulation.world import World

from airflow_outbox.errors import FencedError, PostgresError
from airflow_outbox.fence import Witness
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.ports import Table
from airflow_outbox.harvest.postgres import PostgresTable
from airflow_outbox.names import OutboxName
from airflow_outbox.pages import BYTES, TRANSACTION_ID, Length, Page, Reading
from airflow_outbox.records import Snapshot
from airflow_outbox.schema import init_outbox
from airflow_outbox.table import MarkedRecord

ALL = {"max_records": 1000, "max_bytes": 10**9}
INSERT = (
    "INSERT INTO outbox (id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)"
    " VALUES (%s, %s, %s, %s, %s, %s)"
)


class Writer(Protocol):
    """A transaction of an application."""

    def insert(self, *ids: int) -> None: ...

    def draw(self) -> int:
        """The next id of the sequence."""

    def commit(self, *, synchronous: bool = True) -> None: ...

    def rollback(self) -> None: ...

    def prepare(self) -> Callable[[], None]:
        """PREPARE TRANSACTION; how to commit it."""


@dataclass(frozen=True, slots=True)
class TableUnderTest:
    """Two members' tables over one outbox, and a writer's way into it."""

    one: Table
    other: Table
    commit: Callable[[list[MarkedRecord]], None]
    begin: Callable[[], Writer]


def pending(count: int, *, value: str | None = "value") -> list[MarkedRecord]:
    return [MarkedRecord(number, "t", f"k{number}", value, ["h"], ["1"], None) for number in range(1, count + 1)]


def record(number: int) -> MarkedRecord:
    return pending(1)[0]._replace(id=number)


class RealWriter:
    def __init__(self, database: str) -> None:
        self._connection = psycopg.connect(database)

    def insert(self, *ids: int) -> None:
        for number in ids:
            self._connection.execute(INSERT, record(number)[:6])

    def draw(self) -> int:
        row = self._connection.execute("SELECT nextval(pg_get_serial_sequence('outbox', 'id'))").fetchone()
        assert row is not None
        return int(row[0])

    def commit(self, *, synchronous: bool = True) -> None:
        self._connection.execute(f"SET LOCAL synchronous_commit = {'on' if synchronous else 'off'}")
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.close()

    def prepare(self) -> Callable[[], None]:
        name = f"test {uuid4()}"
        self._connection.execute(f"PREPARE TRANSACTION '{name}'")
        self._connection.autocommit = True

        def commit() -> None:
            self._connection.execute(f"COMMIT PREPARED '{name}'")
            self._connection.close()

        return commit


class SimulatedWriter:
    def __init__(self, database: Database) -> None:
        self._transaction: Transaction = database.begin()

    def insert(self, *ids: int) -> None:
        for number in ids:
            self._transaction.insert(record(number))

    def draw(self) -> int:
        return self._transaction.draw()

    def commit(self, *, synchronous: bool = True) -> None:
        self._transaction.commit(synchronous=synchronous)

    def rollback(self) -> None:
        self._transaction.rollback()

    def prepare(self) -> Callable[[], None]:
        prepared = self._transaction.prepare()
        return lambda: prepared.end(committed=True)


@pytest.fixture(params=["real", "simulated"])
async def table(request: pytest.FixtureRequest) -> AsyncIterator[TableUnderTest]:
    if request.param == "simulated":
        world = World(1)
        one, other = (SimulatedTable(world.server, world.network) for _ in range(2))
        yield TableUnderTest(
            one,
            other,
            lambda records: world.database.stash(*records),
            lambda: SimulatedWriter(world.database),
        )
        return
    database = request.getfixturevalue("database")
    name = OutboxName.parse("outbox")
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, name)

        def commit(records: list[MarkedRecord]) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(INSERT, [record[:6] for record in records])

        real, rival = PostgresTable(database, name, Limits()), PostgresTable(database, name, Limits())
        writers: list[RealWriter] = []

        def begin() -> Writer:
            writers.append(RealWriter(database))
            return writers[-1]

        yield TableUnderTest(real, rival, commit, begin)
        for writer in writers:
            writer.rollback()
        await real.close()
        await rival.close()


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


# What harvesting exactly once needs


def ids(page: Page) -> list[int]:
    return [row[0] for row in page.rows]


async def read(table: TableUnderTest, reading: Reading, **bounds: Any) -> Page:
    return await table.one.read(reading, **{**ALL, "transaction_ids": False, **bounds})


async def test_a_window_is_what_became_visible_since_the_one_before(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    slow, undone, twofold = table.begin(), table.begin(), table.begin()
    slow.insert(1, 7)
    undone.insert(2)
    twofold.insert(4)
    end_twofold = twofold.prepare()
    table.commit([record(3), record(5)])
    first = await read(table, Reading())
    assert ids(first) == [3, 5]
    assert first.complete
    undone.rollback()
    table.commit([record(6)])
    second = await read(table, Reading(after=first.snapshot))
    assert ids(second) == [6]
    slow.commit()
    third = await read(table, Reading(after=second.snapshot))
    assert ids(third) == [1, 7]
    end_twofold()
    fourth = await read(table, Reading(after=third.snapshot))
    assert ids(fourth) == [4]
    assert ids(await read(table, Reading(after=fourth.snapshot))) == []


async def test_ids_that_were_drawn_early_are_found_when_they_are_committed(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    early = table.begin()
    number = early.draw()
    later = table.begin()
    later.insert(later.draw())
    later.commit()
    first = await read(table, Reading())
    assert ids(first) == [number + 1]
    early.insert(number)
    early.commit()
    assert ids(await read(table, Reading(after=first.snapshot))) == [number]


async def test_the_pages_of_a_window_are_within_its_snapshot(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    late = table.begin()
    late.insert(4)
    table.commit([record(number) for number in (1, 2, 3, 5, 6)])
    first = await read(table, Reading(), max_records=2)
    assert (ids(first), first.complete) == ([1, 2], False)
    late.commit()
    table.commit([record(7)])
    second = await read(table, Reading(within=first.snapshot, above=2), max_records=2)
    assert (ids(second), second.complete) == ([3, 5], False)
    third = await read(table, Reading(within=first.snapshot, above=5), max_records=2)
    assert (ids(third), third.complete) == ([6], True)
    following = await read(table, Reading(after=first.snapshot), max_records=1)
    assert (ids(following), following.complete) == ([4], False)
    last = await read(table, Reading(after=first.snapshot, within=following.snapshot, above=4))
    assert (ids(last), last.complete) == ([7], True)


async def test_a_page_ends_with_the_record_that_reaches_the_bound_on_bytes(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    table.commit(pending(3))
    size = pending(1)[0].size
    page = await read(table, Reading(), max_bytes=1)
    assert (ids(page), page.complete) == ([1], False)
    page = await read(table, Reading(), max_bytes=size + 1)
    assert (ids(page), page.complete) == ([1, 2], False)
    assert [row[BYTES] for row in page.rows] == [size, 2 * size]
    assert list(page.rows[0][:7]) == list(pending(1)[0])


async def test_a_record_tells_its_transaction_and_a_transaction_its_length(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    one, other = table.begin(), table.begin()
    one.insert(1, 3)
    other.insert(2, 5, 9)
    one.commit()
    other.commit()
    page = await read(table, Reading(), transaction_ids=True)
    first, second = page.rows[0][TRANSACTION_ID], page.rows[1][TRANSACTION_ID]
    assert first is not None
    assert second is not None
    assert [row[TRANSACTION_ID] for row in page.rows] == [first, second, first, second, second]
    assert all(page.snapshot.sees(number) for number in (first, second))
    assert await table.one.lengths([first, second, 2]) == {first: Length(2, 3), second: Length(3, 9)}
    assert [row[TRANSACTION_ID] for row in (await read(table, Reading())).rows] == [None] * 5


async def test_a_purge_takes_exact_ids_as_far_as_the_snapshot_sees_them(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    late = table.begin()
    late.insert(2)
    table.commit([record(1), record(3), record(4)])
    page = await read(table, Reading())
    late.commit()
    table.commit([record(5)])
    await table.one.purge_published(view, [1, 2, 3, 5, 77], page.snapshot)
    assert ids(await read(table, Reading())) == [2, 4, 5]


async def test_what_is_seen_is_on_disk_after_a_flush(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    writer = table.begin()
    writer.insert(1)
    writer.commit(synchronous=False)
    page = await read(table, Reading())
    assert ids(page) == [1]
    assert page.flushed <= page.written
    assert await table.one.flush(page.written) >= page.written
    again = await read(table, Reading())
    assert again.flushed >= page.written
    assert await table.one.purge_published(view, [1], again.snapshot) >= page.written


async def test_the_fence_row_keeps_what_it_is_told(table: TableUnderTest) -> None:
    view, witness = uuid4(), Witness("ledger", 7, 40, 99)
    found = await table.one.take_over(view)
    assert (found.delivery, found.transactional_id, found.halted, found.witness) == (None, None, None, Witness())
    assert found.recorded == found.present
    await table.one.begin(view, delivery="exactly_once", witness=witness, transactional_id="one")
    await table.one.begin(view, delivery="exactly_once", witness=witness)
    fence = await table.one.fence(view)
    assert (fence.delivery, fence.transactional_id, fence.witness) == ("exactly_once", "one", witness)
    pulse = await table.one.heartbeat(view, published=1, in_flight=0, rate=0)
    assert (await table.one.fence(view)).witness == witness
    later = replace(witness, batch=8, offset=50, highest_id=120)
    assert (await table.one.heartbeat(view, published=0, in_flight=0, rate=0, witness=later)).beats == pulse.beats + 1
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
    assert before.next_transaction_id <= after.newest_transaction_id < after.next_transaction_id


async def test_what_was_halted_stays_halted(table: TableUnderTest) -> None:
    view = uuid4()
    await table.one.take_over(view)
    await table.one.halt(uuid4(), "of a view that is over")
    assert (await table.one.fence(view)).halted is None
    await table.one.halt(view, "restored")
    assert (await table.one.fence(view)).halted == "restored"
    assert (await table.other.take_over(uuid4())).halted == "restored"


async def test_a_fenced_view_purges_nothing_and_tells_nothing(table: TableUnderTest) -> None:
    old, new = uuid4(), uuid4()
    table.commit(pending(2))
    await table.one.take_over(old)
    page = await read(table, Reading())
    await table.other.take_over(new)
    for attempt in (
        table.one.purge_published(old, [1], page.snapshot),
        table.one.begin(old, delivery="exactly_once", witness=Witness("x", 1, 1, 1)),
        table.one.heartbeat(old, published=0, in_flight=0, rate=0, witness=Witness("x", 1, 1, 1)),
        table.one.fence(old),
    ):
        with pytest.raises(FencedError):
            await attempt
    assert (await table.other.fence(new)).witness == Witness()
    assert ids(await table.other.read(Reading(), **ALL, transaction_ids=False)) == [1, 2]


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


async def test_a_snapshot_is_the_same_as_text(table: TableUnderTest) -> None:
    await table.one.take_over(uuid4())
    writer = table.begin()
    writer.insert(1)
    table.commit([record(2)])
    snapshot = (await read(table, Reading())).snapshot
    assert Snapshot.parse(str(snapshot)) == snapshot
    assert len(snapshot.in_progress) == 1
    writer.rollback()
