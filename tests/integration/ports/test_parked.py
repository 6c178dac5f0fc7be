"""The port `Table`, real and simulated, passes one suite: what the engine relies on, so that the simulation can be
trusted. Here: parked records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

import pytest
from support.tables_under_test import ALL, TableUnderTest

from airflow_outbox.errors import FencedError
from airflow_outbox.harvest.protocol.ledger import Parked, runs
from airflow_outbox.postgres import parked as parked_table
from airflow_outbox.values.pages import ID, TRANSACTION_ID, Length, OutboxRow, PageSnapshot
from airflow_outbox.values.records import MarkedRecord, Snapshot
from airflow_outbox.values.refusals import Cause, Refusal

WAITING = None
A, B, C = ("t", "a"), ("t", "b"), ("t", "c")


def record(number: int, lane: tuple[str, str]) -> MarkedRecord:
    return MarkedRecord(number, *lane, f"v{number}", ["h"], [str(number)], None)


def because(cause: Cause | None, *ids: int) -> Parked:
    return Parked(cause, f"{cause} it is" if cause else None, runs(ids))


class LeadingView:
    """A view that leads, and what it sees."""

    def __init__(self, table: TableUnderTest) -> None:
        self.table = table
        self.view = uuid4()

    async def lead(self, *records: MarkedRecord) -> Snapshot:
        """Take over an outbox with these records, and read it."""
        self.table.commit(list(records))
        await self.table.one.take_over(self.view)
        return (await self.table.one.read(PageSnapshot(), **ALL, transaction_ids=False)).snapshot

    async def park(self, snapshot: Snapshot | None, *parked: Parked) -> None:
        await self.table.one.park(self.view, parked, snapshot)

    async def left(self) -> list[int]:
        page = await self.table.one.read(PageSnapshot(), **ALL, transaction_ids=False)
        return [row[0] for row in page.rows]

    async def due_rows(self, *, most: int = 100, all_lanes: bool = False) -> Sequence[OutboxRow]:
        return await self.table.one.parked_due(max_records=most, max_bytes=10**9, of_all_lanes=all_lanes)

    async def due(self, *, most: int = 100, all_lanes: bool = False) -> list[str | bytes | None]:
        """The values of what is due."""
        return [row[3] for row in await self.due_rows(most=most, all_lanes=all_lanes)]

    async def numbers(self, *values: str) -> list[int]:
        """The numbers of records that are due, by value."""
        rows = await self.due_rows(all_lanes=True)
        return [row[0] for value in values for row in rows if row[3] == value]

    async def waiting(self) -> tuple[dict[tuple[str, str | bytes | None], int], set[str]]:
        lanes, topics, counted = await self.table.one.parked_lanes(most=1000)
        assert not counted
        return {(topic, key): count for topic, keys in lanes.items() for key, count in keys.items()}, set(topics)


@pytest.fixture
def scene(table: TableUnderTest) -> LeadingView:
    return LeadingView(table)


async def test_what_is_parked_leaves_the_outbox_once_and_waits_in_its_lane(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, B, A, C), 1)))
    parked = because(Cause.HEADERS, 1), because(WAITING, 3)
    await scene.park(snapshot, *parked)
    await scene.park(snapshot, *parked)  # as a successor does that finds the entry
    assert await scene.left() == [2, 4]
    assert await scene.waiting() == ({A: 2}, set())
    scene.table.elapse()
    assert await scene.due() == []


async def test_the_lanes_of_the_topics_with_most_records_are_only_counted(scene: LeadingView) -> None:
    few, one = ("u", "a"), ("v", "")
    lanes = A, few, B, A, one
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate(lanes, 1)))
    await scene.park(snapshot, because(Cause.UNKNOWN_TOPIC, 1), because(WAITING, 2, 3, 4, 5))
    assert await scene.table.one.parked_lanes(most=4) == ({"u": {"a": 1}, "v": {"": 1}}, {"t"}, {"t": 3})
    assert await scene.table.one.parked_lanes(most=0) == ({}, {"t"}, {"t": 3, "u": 1, "v": 1})


async def test_the_table_tells_which_lanes_wait(scene: LeadingView) -> None:
    lanes = A, A, B, ("t", "d")
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((*lanes, C), 1)))
    await scene.park(snapshot, because(Cause.HEADERS, 1, 3, 4), because(WAITING, 2))
    asked = [A, B, C, ("t", "d"), ("u", "a")]
    assert set(await scene.table.one.waiting_lanes(asked, leaving=[])) == {A, B, ("t", "d")}
    scene.table.ask("retry", [1])
    one, three, last = await scene.numbers("v1", "v3", "v4")
    assert set(await scene.table.one.waiting_lanes(asked, leaving=[one, three, last])) == {A}
    scene.table.ask("discard", [2])
    await scene.table.one.discard_requested(scene.view)
    assert set(await scene.table.one.waiting_lanes(asked, leaving=[one])) == {B, ("t", "d")}


async def test_what_is_parked_in_slices_is_in_order(scene: LeadingView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_table, "_PARKED_AT_ONCE", 2)
    snapshot = await scene.lead(*(record(number, (A, B)[number % 2]) for number in range(1, 6)))
    await scene.park(snapshot, because(WAITING, 2, 4, 5), because(Cause.HEADERS, 3, 1))
    assert await scene.left() == []
    scene.table.ask("retry", [1, 2])
    assert await scene.due() == ["v1", "v2", "v3", "v4", "v5"]


async def test_only_what_the_snapshot_sees_is_parked(scene: LeadingView) -> None:
    snapshot = await scene.lead(record(1, A), record(2, A))
    scene.table.commit([record(3, A)])
    await scene.park(snapshot, because(Cause.HEADERS, 1, 3, 77))
    assert await scene.left() == [2, 3]


async def test_without_a_snapshot_only_what_carries_the_views_mark_is_parked(scene: LeadingView) -> None:
    await scene.lead(record(1, A), record(2, A))
    await scene.table.one.mark(scene.view, max_records=1, max_bytes=10**9)
    await scene.park(None, because(Cause.HEADERS, 1, 2))
    assert await scene.left() == [2]


async def test_a_lane_is_due_from_its_first_record_on_when_its_cause_can_have_passed(scene: LeadingView) -> None:
    lanes = A, B, A, B, A, C
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate(lanes, 1)))
    await scene.park(snapshot, because(Cause.PARTITION, 1), because(Cause.HEADERS, 2), because(WAITING, 3, 4, 5))
    scene.table.elapse()
    assert await scene.due() == ["v1", "v3", "v5"]
    assert await scene.due(most=2) == ["v1", "v3"]
    assert await scene.due(all_lanes=True) == ["v1", "v2", "v3", "v4", "v5"]
    first = (await scene.due_rows())[0]
    assert first[1:7] == ("t", "a", "v1", ["h"], ["1"], None)
    own = first[TRANSACTION_ID]
    assert own is not None
    scene.table.ask("retry", [1])  # or it would not be tried, for one of its records waits until somebody asks
    last = max(await scene.numbers("v1", "v2", "v3", "v4", "v5"))
    assert await scene.table.one.parked_lengths([own, own + 1000]) == {own: Length(6, last)}  # one is in the outbox


async def test_nothing_of_all_lanes_is_due_unless_something_is(scene: LeadingView) -> None:
    snapshot = await scene.lead(record(1, A), record(2, A))
    await scene.park(snapshot, because(Cause.HEADERS, 1), because(WAITING, 2))
    assert await scene.due(all_lanes=True) == []
    scene.table.ask("retry", [2])
    assert await scene.due() == ["v1", "v2"]  # in order, whichever was named


async def test_what_is_published_is_gone_and_the_next_of_its_lane_is_released(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, B, A, B, A), 1)))
    await scene.park(snapshot, because(Cause.HEADERS, 1, 2), because(WAITING, 3, 4, 5))
    scene.table.ask("retry", [1])
    (first,) = await scene.numbers("v1")
    await scene.table.one.unpark(scene.view, [first, first + 1000])
    assert await scene.due() == []
    await scene.table.one.release(scene.view, max_records=100)
    assert await scene.due() == ["v3", "v5"]
    assert await scene.waiting() == ({A: 2, B: 2}, set())
    await scene.table.one.unpark(scene.view, await scene.numbers("v3", "v5"))
    await scene.table.one.release(scene.view, max_records=100)
    assert await scene.due() == []
    assert await scene.waiting() == ({B: 2}, set())


async def test_so_many_are_released_at_a_time(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, B, C, A), 1)))
    await scene.park(snapshot, because(WAITING, 1, 2, 3, 4))
    assert await scene.table.one.release(scene.view, max_records=2)
    assert len({row[2] for row in await scene.due_rows()}) == 2
    assert not await scene.table.one.release(scene.view, max_records=2)
    assert await scene.due() == ["v1", "v2", "v3", "v4"]
    assert not await scene.table.one.release(scene.view, max_records=2)


async def test_nothing_is_released_of_a_topic_for_which_another_record_stands(scene: LeadingView) -> None:
    other = "u", "a"
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, B, other), 1)))
    await scene.park(snapshot, because(Cause.TOPIC_NAME, 1), because(WAITING, 2, 3))
    await scene.table.one.release(scene.view, max_records=100)
    assert await scene.due() == ["v3"]


@pytest.mark.parametrize("end", ["published", "discarded"])
async def test_a_topic_that_is_parked_goes_on_with_all_its_lanes(scene: LeadingView, end: str) -> None:
    other = "u", "a"
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, B, other, A), 1)))
    await scene.park(snapshot, because(Cause.UNKNOWN_TOPIC, 1), because(WAITING, 2, 4), because(Cause.HEADERS, 3))
    assert await scene.waiting() == ({A: 2, B: 1, other: 1}, {"t"})
    scene.table.elapse()
    assert await scene.due() == ["v1", "v2", "v4"]
    if end == "published":
        await scene.table.one.unpark(scene.view, await scene.numbers("v1"))
    else:
        scene.table.ask("discard", [1])
        assert await scene.table.one.discard_requested(scene.view) == [A]
    assert await scene.waiting() == ({A: 1, B: 1, other: 1}, set())
    await scene.table.one.release(scene.view, max_records=100)
    assert await scene.due() == ["v2", "v4"]


async def test_a_topic_goes_on_without_what_waits_until_somebody_asks(scene: LeadingView) -> None:
    """However much waits behind that: it takes no place of what can be published."""
    lanes = A, B, A, A, A, B, C
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate(lanes, 1)))
    await scene.park(snapshot, because(Cause.HEADERS, 3), because(WAITING, 1, 2, 4, 5, 6))
    await scene.park(snapshot, because(Cause.UNKNOWN_TOPIC, 7))
    scene.table.elapse()
    assert await scene.due(most=4) == ["v1", "v2", "v6", "v7"]
    scene.table.ask("retry", [5])
    assert await scene.due() == ["v1", "v2", "v3", "v4", "v5", "v6", "v7"]


async def test_a_refusal_is_noted_and_answers_what_was_asked(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, A, B, B), 1)))
    await scene.park(snapshot, because(Cause.PARTITION, 1, 3), because(WAITING, 2, 4))
    scene.table.elapse()
    scene.table.ask("retry", [1, 2])
    one, two, three = await scene.numbers("v1", "v2", "v3")
    await scene.table.one.note_refusals(scene.view, {one: NEVER, 1000: NEVER}, others=[two, 1001])
    assert await scene.due() == ["v3", "v4"]
    await scene.table.one.note_refusals(scene.view, {three: NEVER}, others=[])
    scene.table.elapse()
    assert await scene.due() == []
    assert await scene.waiting() == ({A: 2, B: 2}, set())


async def test_a_refusal_does_not_answer_what_was_asked_since_it_was_tried(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, A, B), 1)))
    await scene.park(snapshot, because(Cause.PARTITION, 1), because(WAITING, 2), because(Cause.HEADERS, 3))
    scene.table.ask("retry", [1])
    one, two = [row[ID] for row in await scene.due_rows()]
    scene.table.ask("retry", [2])
    await scene.table.one.note_refusals(scene.view, {one: NEVER}, others=[two])
    assert await scene.due() == ["v1", "v2"]
    await scene.table.one.note_refusals(scene.view, {one: NEVER}, others=[two])
    assert await scene.due() == []


async def test_a_refusal_for_the_topic_parks_it_until_that_has_passed(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, B, A), 1)))
    await scene.park(snapshot, because(Cause.PARTITION, 1), because(Cause.HEADERS, 2), because(WAITING, 3))
    scene.table.elapse()
    (one,) = await scene.numbers("v1")
    await scene.table.one.note_refusals(scene.view, {one: Refusal(Cause.UNKNOWN_TOPIC, "now")}, others=[])
    assert await scene.waiting() == ({A: 2, B: 1}, {"t"})
    scene.table.elapse()
    assert await scene.due() == ["v1", "v3"]  # the other one waits until somebody asks


NEVER = Refusal(Cause.REFUSED, "never")


async def test_others_that_were_tried_wait_and_lose_a_cause_that_can_pass(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, B, C), 1)))
    await scene.park(snapshot, because(Cause.UNKNOWN_TOPIC, 1), because(Cause.PARTITION, 2), because(Cause.HEADERS, 3))
    scene.table.elapse()
    one, two, three = await scene.numbers("v1", "v2", "v3")
    await scene.table.one.note_refusals(scene.view, {one: NEVER}, others=[two, three])
    assert await scene.waiting() == ({A: 1, B: 1, C: 1}, set())
    assert await scene.due() == []
    await scene.table.one.release(scene.view, max_records=100)
    assert await scene.due() == ["v2"]


async def test_what_is_to_be_discarded_leaves_its_lane_and_the_next_is_released(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, A, A, B, B), 1)))
    await scene.park(snapshot, because(Cause.HEADERS, 1, 4), because(WAITING, 2, 3, 5))
    assert await scene.table.one.discard_requested(scene.view) == []
    scene.table.ask("discard", [1, 2, 5])
    assert sorted(await scene.table.one.discard_requested(scene.view)) == [A, A, B]
    assert await scene.table.one.discard_requested(scene.view) == []
    assert await scene.waiting() == ({A: 1, B: 1}, set())
    await scene.table.one.release(scene.view, max_records=100)
    assert await scene.due() == ["v3"]
    assert {"v1", "v2", "v5"}.isdisjoint(await scene.due(all_lanes=True))
    scene.table.ask("retry", [3])
    (length,) = (await scene.table.one.parked_lengths(transactions(await scene.due_rows(all_lanes=True)))).values()
    assert length.records == 2


def transactions(rows: Iterable[OutboxRow]) -> set[int]:
    return {number for row in rows if (number := row[TRANSACTION_ID]) is not None}


async def test_a_fenced_view_changes_nothing_that_is_parked(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, A, B), 1)))
    await scene.park(snapshot, because(Cause.PARTITION, 1), because(WAITING, 2))
    scene.table.ask("discard", [2])
    scene.table.elapse()
    (first,) = await scene.numbers("v1")
    new: UUID = uuid4()
    await scene.table.other.take_over(new)
    for attempt in (
        scene.table.one.park(scene.view, [because(Cause.HEADERS, 3)], snapshot),
        scene.table.one.unpark(scene.view, [first]),
        scene.table.one.note_refusals(scene.view, {first: NEVER}, others=[]),
        scene.table.one.release(scene.view, max_records=100),
    ):
        with pytest.raises(FencedError):
            await attempt
    with suppress(FencedError):
        assert await scene.table.one.discard_requested(scene.view) == []
    assert await scene.left() == [3]
    assert await scene.waiting() == ({A: 2}, set())
    assert await scene.due() == ["v1", "v2"]
    assert await scene.table.other.discard_requested(new) == [A]


async def test_a_transaction_that_waits_for_somebody_to_ask_may_not_be_tried(scene: LeadingView) -> None:
    snapshot = await scene.lead(record(1, A), record(2, B))
    scene.table.commit([record(3, C)])
    later = (await scene.table.one.read(PageSnapshot(), **ALL, transaction_ids=False)).snapshot
    await scene.park(later, because(Cause.HEADERS, 1), because(WAITING, 2), because(Cause.PARTITION, 3))
    assert snapshot != later
    scene.table.elapse()
    own, other = sorted(transactions(await scene.due_rows(all_lanes=True)))
    assert (await scene.table.one.parked_lengths([own, other])).keys() == {other}
    scene.table.ask("retry", [2])
    assert (await scene.table.one.parked_lengths([own, other])).keys() == {own, other}


async def test_a_refusal_answers_all_that_is_behind_it_however_much_was_tried(scene: LeadingView) -> None:
    snapshot = await scene.lead(*(record(number, lane) for number, lane in enumerate((A, A, B, A), 1)))
    await scene.park(snapshot, because(Cause.HEADERS, 1), because(WAITING, 2, 3, 4))
    scene.table.ask("retry", [2, 3, 4])
    (first,) = await scene.numbers("v1")
    await scene.table.one.note_refusals(scene.view, {first: NEVER}, others=[])
    assert await scene.due() == ["v3"]


async def test_what_is_parked_in_part_is_not_taken_for_whole(scene: LeadingView) -> None:
    snapshot = await scene.lead(record(1, A), record(2, B), record(3, C))
    assert await scene.table.one.parked_in_part() == set()
    await scene.park(snapshot, because(Cause.SPREAD, 1), because(WAITING, 2))
    scene.table.elapse()
    (own,) = transactions(await scene.due_rows(all_lanes=True))
    assert await scene.table.one.parked_in_part() == {own}
    (length,) = (await scene.table.one.parked_lengths([own])).values()
    assert length.records == 3
    await scene.park(snapshot, because(WAITING, 3))
    assert await scene.table.one.parked_in_part() == set()
    (length,) = (await scene.table.one.parked_lengths([own])).values()
    assert length.records == 3
