"""The comparison, against a plain judge that holds everything in memory, and against what each kind is said to mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_outbox.audit.comparison import Comparison
from airflow_outbox.audit.findings import Clue, FindingKind, Findings
from airflow_outbox.audit.fingerprints import (
    DUE,
    EXPIRED,
    NO_PIN,
    WAITING,
    Arrived,
    Stashed,
    content_of,
    lane_of,
    place_of,
    slot_and_offset,
)


def row(
    number: int, content: int, *, lane: int = 1, transaction: int | None = None, excuse: int = DUE, pin: int = NO_PIN
) -> Stashed:
    return Stashed(lane, pin, content, number, transaction, excuse)


def records(*contents: int, lane: int = 1, partition: int = 0, start: int = 0, late: int = 0) -> list[Arrived]:
    """Records one behind the other in a partition."""
    return [
        Arrived(lane, partition, content, place_of(partition, start + offset), late)
        for offset, content in enumerate(contents)
    ]


def rows(*contents: int, lane: int = 1, start: int = 1) -> list[Stashed]:
    """Rows one behind the other, each in a transaction of its own."""
    return [row(start + n, content, lane=lane, transaction=start + n) for n, content in enumerate(contents)]


def compare(stashed: Sequence[Stashed], arrived: Sequence[Arrived], *, examples: int = 10) -> Findings:
    with Comparison(pinned=any(one.pin >= 0 for one in stashed)) as comparison:
        comparison.add_arrived(arrived)
        comparison.add_stashed(stashed)
        return comparison.findings(examples=examples)


def counts(findings: Findings) -> dict[str, int]:
    names = ("missing", "doubled", "reordered", "torn", "foreign", "waiting", "expired", "later")
    return {name: count for name in names if (count := getattr(findings, name))}


@pytest.mark.parametrize(
    ("stashed", "arrived", "found"),
    [
        (rows(), records(), {}),
        (rows(1, 2, 3), records(1, 2, 3), {}),
        (rows(1, 2, 3), records(1, 3), {"missing": 1}),
        (rows(1, 2, 3), records(), {"missing": 3}),
        (rows(1, 2, 3), records(1, 2, 1, 3), {"doubled": 1}),
        (rows(1, 2, 3), records(2, 1, 3), {"reordered": 1}),
        (rows(1, 2, 3), records(3, 1, 2), {"reordered": 2}),
        (rows(1, 2), records(2, 1, 2), {"doubled": 1, "reordered": 1}),
        (rows(1), records(1, 9), {"foreign": 1}),
        (rows(), records(9, 9), {"foreign": 2}),
        # The same content under another key is another record.
        (rows(1), records(1, lane=2), {"missing": 1, "foreign": 1}),
        # Equal records of one key: what counts is how many there are.
        (rows(1, 1, 1), records(1, 1, 1), {}),
        (rows(1, 1, 1), records(1, 1), {"missing": 1}),
        (rows(1, 1, 1), records(1, 1, 1, 1), {"doubled": 1}),
        (rows(1, 2, 1), records(1, 2, 1), {}),
        (rows(1, 2, 1), records(1, 1, 2), {"reordered": 1}),
        (rows(1, 2, 1), records(1, 1, 2, 1), {"doubled": 1}),
        (rows(1, 2, 1), records(2, 1), {"missing": 1}),
        # A key that moves to another partition.
        (rows(1, 2), [*records(1), *records(2, partition=3)], {"reordered": 1}),
        (rows(1, 2, 3), [*records(1), *records(2, 3, partition=3)], {"reordered": 1}),
        (rows(1, 2), [*records(1), *records(2, lane=1, start=1000)], {}),
    ],
)
def test_each_kind(stashed: list[Stashed], arrived: list[Arrived], found: dict[str, int]) -> None:
    assert counts(compare(stashed, arrived)) == found


def test_a_lane_that_is_in_doubt_leaves_the_others_alone() -> None:
    stashed = [*rows(1, 2, 3), *rows(1, 2, 3, lane=2, start=11), *rows(5, lane=3, start=21)]
    arrived = [*records(1, 2, 3), *records(1, 3, lane=2, start=10), *records(5, lane=3, start=20)]
    found = compare(stashed, arrived)
    assert counts(found) == {"missing": 1}
    assert (found.stashed, found.arrived) == (7, 6)
    assert found.clues == (Clue(FindingKind.MISSING, id=12),)


def test_excused_rows_may_be_absent_or_there() -> None:
    waiting = row(2, 2, excuse=WAITING)
    expired = row(1, 1, excuse=EXPIRED)
    assert counts(compare([expired, waiting, row(3, 3)], records(3))) == {"waiting": 1, "expired": 1}
    assert counts(compare([expired, waiting, row(3, 3)], records(1, 2, 3))) == {}
    assert counts(compare([expired, waiting, row(3, 3)], records(2, 1))) == {"missing": 1, "reordered": 1}
    equal = [row(1, 7), row(2, 7), row(3, 7, excuse=WAITING)]
    assert counts(compare(equal, records(7))) == {"missing": 1, "waiting": 1}
    assert counts(compare(equal, records(7, 7))) == {"waiting": 1}


def test_a_late_record_is_no_fault_unless_its_row_is_known() -> None:
    arrived = [*records(1, 2), *records(2, 9, start=2, late=1)]
    assert counts(compare(rows(1, 2), arrived)) == {"later": 2}
    assert counts(compare(rows(1, 2, 2), arrived)) == {"later": 1}
    assert counts(compare(rows(1), [*records(1, 1), *records(1, start=2, late=1)])) == {"doubled": 1, "later": 1}


def test_torn_transactions_lack_a_part() -> None:
    stashed = [
        row(1, 1, transaction=5),
        row(2, 2, transaction=5, lane=2),
        row(3, 3, transaction=6, lane=2),
        row(4, 4, transaction=6, lane=2),
        row(5, 5, transaction=7, lane=2),
        row(6, 6, transaction=7, lane=2, excuse=WAITING),
    ]
    found = compare(stashed, [*records(1), *records(5, lane=2)])
    assert counts(found) == {"missing": 3, "torn": 1, "waiting": 1}
    assert found.clues[-1] == Clue(FindingKind.TORN, transaction_id=5, records=1, id=2)


def test_records_that_ask_for_a_partition_are_looked_for_there() -> None:
    def pinned(number: int, partition: int) -> Stashed:
        return row(number, 7, pin=partition)

    stashed = [pinned(1, 0), pinned(2, 1), pinned(3, 0), pinned(4, 1), row(5, 8), row(6, 9)]
    arrived = [*records(7, 7, 8, 9), *records(7, 7, partition=1)]
    assert counts(compare(stashed, arrived)) == {}
    elsewhere = [*records(7, 7, 8, 9), *records(7, partition=1), *records(7, partition=2)]
    assert counts(compare(stashed, elsewhere)) == {"missing": 1, "foreign": 1}
    assert counts(compare(stashed, [*records(7, 7, 9, 8), *records(7, 7, partition=1)])) == {"reordered": 1}


def test_clues_are_the_first_ones() -> None:
    stashed, arrived = rows(*range(100)), records(*range(99, 49, -1), *range(60, 80), *range(200, 250))
    found = compare(stashed, arrived, examples=2)
    assert counts(found) == {"missing": 50, "doubled": 20, "reordered": 49, "foreign": 50}
    assert found.clues == (
        Clue(FindingKind.MISSING, id=1),
        Clue(FindingKind.MISSING, id=2),
        Clue(FindingKind.DOUBLED, id=61, place=50),
        Clue(FindingKind.DOUBLED, id=62, place=51),
        Clue(FindingKind.REORDERED, id=51, place=49, other_id=100),
        Clue(FindingKind.REORDERED, id=52, place=48, other_id=100),
        Clue(FindingKind.FOREIGN, place=70),
        Clue(FindingKind.FOREIGN, place=71),
    )


def judged(stashed: Sequence[Stashed], arrived: Sequence[Arrived]) -> dict[str, int]:
    """The same in plain words, one lane at a time."""
    found: Counter[str] = Counter()
    for lane in {one.lane for one in [*stashed, *arrived]}:
        own = sorted((one for one in stashed if one.lane == lane), key=lambda one: one.id)
        seen = sorted((one for one in arrived if one.lane == lane), key=lambda one: one.place)
        pairs = []
        for content in {one.content for one in [*own, *seen]}:
            n = [one.id for one in own if one.content == content]
            k = [one.place for one in seen if one.content == content]
            found["missing"] += max(0, len(n) - len(k))
            found["doubled" if n else "foreign"] += max(0, len(k) - len(n))
            if len(n) == len(k) or len(n) == 1:
                pairs += list(zip(n, k, strict=False))
        slot = {place: slot_and_offset(place)[0] for _, place in pairs}
        late = {
            one
            for one, place in pairs
            if any(other > one and before < place and slot[before] == slot[place] for other, before in pairs)
        }
        late |= {after for (_, a), (after, b) in pairwise(sorted(pairs)) if slot[a] != slot[b]}
        found["reordered"] += len(late)
    return {kind: count for kind, count in found.items() if count}


SOME = st.integers(0, 3)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(SOME, SOME), max_size=12), st.lists(st.tuples(SOME, SOME, st.integers(0, 1)), max_size=12))
def test_it_says_what_the_plain_judge_says(stashed: list[tuple[int, int]], arrived: list[tuple[int, int, int]]) -> None:
    own = [row(number, content, lane=lane) for number, (lane, content) in enumerate(stashed)]
    seen = [
        Arrived(lane, partition, content, place_of(partition, offset), 0)
        for offset, (lane, content, partition) in enumerate(arrived)
    ]
    found = compare(own, seen)
    assert counts(found) == judged(own, seen)


@settings(max_examples=200, deadline=None)
@given(st.lists(SOME, max_size=8), st.data())
def test_a_history_of_at_least_once_is_never_called_reordered(contents: list[int], data: st.DataObject) -> None:
    sent, seen = 0, []
    while sent < len(contents):
        again = data.draw(st.integers(0, sent)) if data.draw(st.booleans()) else sent
        upto = data.draw(st.integers(sent, len(contents)))
        seen += contents[again:upto]
        sent = max(sent, upto)
    found = compare(rows(*contents), records(*seen))
    assert (found.missing, found.reordered, found.foreign) == (0, 0, 0)
    assert found.doubled == len(seen) - len(contents)


def test_prints_tell_records_apart() -> None:
    contents = [
        (None, ()),
        ("", ()),
        ("a", ()),
        ("a", [("h", "x")]),
        ("a", [("h", None)]),
        ("a", [("h", "")]),
        ("a", [("hx", "")]),
        ("a", [("h", "x"), ("h", "x")]),
        ("a", [("x", "h")]),
        ("ah", [("", "x")]),
        ("a", [("a", "1"), ("b", "2")]),
        ("a", [("b", "2"), ("a", "1")]),
    ]
    assert len({content_of(*content) for content in contents}) == len(contents)
    assert content_of("é", [("h", "é")]) == content_of("é".encode(), [("h", "é".encode())])
    lanes = [("t", "k"), ("tk", ""), ("t", None), ("t", ""), ("k", "t")]
    assert len({lane_of(*lane) for lane in lanes}) == len(lanes)
    assert lane_of("t", "k") == lane_of("t", b"k")
    assert slot_and_offset(place_of(300, 1 << 40)) == (300, 1 << 40)
