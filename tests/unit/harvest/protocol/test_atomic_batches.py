"""Where a window may be cut: never through a source transaction, and never against the order of a lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.atomic_batches import Closure, Taken, behind, lengths_in, transactions
from airflow_outbox.values.pages import TRANSACTION_ID, OutboxRow
from airflow_outbox.values.refusals import Cause

HELD = 8
HELD_BYTES = 1000


def row(number: int, transaction_id: int, key: str = "") -> OutboxRow:
    """A row with this id; each has a key of its own unless it is given."""
    return number, "t", key or f"own {number}", "v", [], [], None, 1, transaction_id


def closure(*, most: int = 100, held: int = HELD, size: int = HELD_BYTES, condemned: Collection[int] = ()) -> Closure:
    return Closure(max_transaction_records=most, max_held_records=held, max_held_bytes=size, condemned=condemned)


def read(one: Closure, window: Sequence[OutboxRow], *, page: int) -> list[Taken]:
    """Read a window by pages."""
    lengths = lengths_in(window, transactions(window))
    taken: list[Taken] = []
    for at in range(0, len(window), page):
        rows = window[at : at + page]
        one.learn({number: lengths[number] for number in one.unknown(rows)})
        taken.append(one.take(rows, complete=at + page >= len(window)))
    return taken


def ids(taken: Taken) -> list[int]:
    return [each[0] for each in taken.rows]


def test_what_is_not_whole_is_held_back() -> None:
    window = [row(number, (number + 1) // 2) for number in range(1, 10)]
    first, last = read(closure(), window, page=5)
    assert (ids(first), first.ends) == ([1, 2, 3, 4], True)
    assert (ids(last), last.ends) == ([5, 6, 7, 8, 9], True)


def test_a_transaction_with_an_early_and_a_late_id_holds_back_its_own_lanes_only() -> None:
    """So does one that comes behind it, and all other records go on."""
    others = range(2, 50)
    window = [row(1, 1, "a"), *(row(n, n) for n in others), row(50, 100, "a"), row(51, 101), row(52, 100), row(53, 1)]
    *early, last = read(closure(), window, page=4)
    assert [number for taken in early for number in ids(taken)] == [*others, 51]
    assert ids(last) == [1, 50, 52, 53]
    assert all(taken.ends for taken in (*early, last))


def test_what_holds_back_too_much_is_set_aside_and_named() -> None:
    window = [row(1, 1, "a"), *(row(n, n, "a" if n % 2 else "") for n in range(2, 60)), row(60, 1)]
    one = closure()
    lengths = lengths_in(window, transactions(window))
    refused: dict[int, Cause] = {}
    out: list[int] = []
    for at in range(0, len(window), 4):
        rows = window[at : at + 4]
        one.learn({number: lengths[number] for number in one.unknown(rows)})
        taken = one.take(rows, complete=at + 4 >= len(window))
        assert taken.ends
        assert len(one.held) <= HELD
        refused |= {number: why.cause for number, why in one.refused(transactions(taken.rows)).items()}
        out += ids(taken)
    assert refused == {1: Cause.SPREAD}
    assert sorted(out) == list(range(1, 61))


def test_a_long_transaction_streams() -> None:
    """Rows read meanwhile go with it, and the batch ends where all its transactions do."""
    window = [row(1, 1), *(row(n, 2) for n in range(2, 28)), row(28, 1), *(row(n, n) for n in (29, 30, 31))]
    taken = read(closure(), window, page=5)
    assert [ids(each) for each in taken] == [*([*range(n, n + 5)] for n in range(1, 31, 5)), [31]]
    assert [each.ends for each in taken] == [False] * 5 + [True, True]


def test_long_transactions_that_follow_each_other_are_in_batches_of_their_own() -> None:
    window = [row(n, n // 20) for n in range(120)]
    taken = read(closure(), window, page=7)
    batches: list[set[int]] = [set()]
    for each in taken:
        batches[-1] |= transactions(each.rows)
        if each.ends:
            batches.append(set())
    assert [batch for batch in batches if batch] == [{number} for number in range(6)]


def test_transactions_that_are_long_together_stream() -> None:
    window = [row(n, n % 3) for n in range(1, 19)]
    taken = read(closure(), window, page=5)
    assert [ids(each) for each in taken] == [[], [*range(1, 11)], [*range(11, 16)], [16, 17, 18]]
    assert [each.ends for each in taken] == [True, False, False, True]


def test_what_is_too_large_or_condemned_is_set_aside_from_its_first_row_on() -> None:
    window = [row(n, n % 3) for n in range(1, 31)]
    one = closure(most=9, condemned={1})
    taken = read(one, window, page=6)
    assert [ids(each) for each in taken] == [list(range(n, n + 6)) for n in range(1, 31, 6)]
    assert all(each.ends for each in taken)
    assert taken[0].set_aside == {0, 1, 2}
    assert one.refused({0, 5}).keys() == {0}


def test_the_end_of_a_window_lets_all_go() -> None:
    one = closure()
    one.learn(lengths_in([row(1, 1), row(9, 1)], {1}))
    assert ids(one.take([row(1, 1)], complete=False)) == []
    assert ids(one.take([], complete=True)) == [1]  # others have deleted the rest
    assert not one.held


def test_who_is_behind() -> None:
    rows = [row(1, 1, "a"), row(2, 2, "b"), row(3, 3, "a"), row(4, 3, "b"), row(5, 4, "b"), row(6, 5, "c")]
    assert behind(rows, {1}) == {1, 3, 4}
    assert behind(rows, {9}) == {9}


def test_a_long_chain_is_followed_in_time() -> None:
    """Each transaction has its first row before that of the one that holds it."""
    most = 20_000
    rows = [row(n, most - n // 2, f"k{most - n // 2 + n % 2}") for n in range(2 * most)]
    assert len(behind(rows, {most})) <= most


rows_of = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=80)


@settings(deadline=None)
@given(rows_of, st.integers(1, 10), st.integers(0, 12), st.sets(st.integers(0, 9), max_size=2), st.integers(5, 40))
def test_no_batch_splits_a_transaction_and_lanes_keep_their_order(
    written: list[tuple[int, int]], page: int, held: int, condemned: set[int], most: int
) -> None:
    """But for what is set aside, and what comes behind that in its lanes: both are parked."""
    window = [row(number, own, f"k{lane}") for number, (own, lane) in enumerate(written, 1)]
    lengths = lengths_in(window, transactions(window))
    one = closure(most=most, held=held, condemned=condemned)
    numbers, batch, streamed = count(), 0, False
    homes: dict[int | None, int] = {}
    set_aside: set[int] = set()
    out: list[OutboxRow] = []
    for at in range(0, len(window), page):
        rows = window[at : at + page]
        one.learn({number: lengths[number] for number in one.unknown(rows)})
        taken = one.take(rows, complete=at + page >= len(window))
        assert len(one.held) <= held * (2 if taken.ends and streamed else 1)
        streamed = one.is_streaming
        assert taken.ends is not one.is_streaming
        set_aside |= condemned | one.refused(transactions(taken.rows)).keys()
        assert set(taken.set_aside) <= set_aside
        assert set(taken.streaming).isdisjoint(set_aside)
        for each in taken.rows:
            if each[TRANSACTION_ID] not in set_aside:
                assert homes.setdefault(each[TRANSACTION_ID], batch) == batch
        out += taken.rows
        if taken.ends:
            batch = next(numbers) + 1
    assert taken.ends
    assert Counter(each[0] for each in out) == Counter(each[0] for each in window)
    for lane in {each[2] for each in window}:
        own = [each[0] for each in out if each[2] == lane]
        assert own == sorted(own)
