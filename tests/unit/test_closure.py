"""Where a window may be cut: never through a source transaction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.closure import Closure, lengths_in
from airflow_outbox.pages import Length, OutboxRow


def row(number: int, transaction_id: int) -> OutboxRow:
    return number, "t", "k", "v", [], [], None, number, transaction_id


def known(rows: list[OutboxRow]) -> dict[int, Length]:
    return lengths_in(rows, {transaction_id for *_, transaction_id in rows})


def test_transactions_that_do_not_interleave_are_cut_behind_the_last_whole_one() -> None:
    window = [row(number, (number + 1) // 2) for number in range(1, 10)]
    closure = Closure(max_transaction_records=100)
    closure.learn(known(window))
    assert closure.cut(window[:5], complete=False) == (4, True)


def test_interleaved_transactions_go_together() -> None:
    window = [row(1, 1), row(2, 2), row(3, 1), row(4, 3), row(5, 2), row(6, 3), row(7, 4)]
    closure = Closure(max_transaction_records=100)
    closure.learn(known(window))
    assert closure.cut(window[:4], complete=False) == (4, False)
    assert closure.cut(window[4:], complete=False) == (3, True)


def test_the_last_page_closes_all() -> None:
    assert Closure(max_transaction_records=100).cut([row(1, 1), row(2, 2)], complete=True) == (2, True)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=40), st.integers(1, 10))
def test_no_batch_splits_a_transaction(transaction_ids: list[int], page: int) -> None:
    window = [row(number, transaction_id) for number, transaction_id in enumerate(transaction_ids, 1)]
    lengths = known(window)
    closure = Closure(max_transaction_records=100)
    batches: list[list[OutboxRow]] = [[]]
    at = 0
    while at < len(window):
        rows = window[at : at + page]
        unknown = closure.unknown(rows)
        closure.learn({transaction_id: lengths[transaction_id] for transaction_id in unknown})
        taken, ends = closure.cut(rows, complete=at + page >= len(window))
        assert taken
        batches[-1] += rows[:taken]
        at += taken
        if ends:
            batches.append([])
    assert batches.pop() == []
    assert [each for batch in batches for each in batch] == window
    homes: dict[int | None, int] = {}
    for number, batch in enumerate(batches):
        for *_, transaction_id in batch:
            assert homes.setdefault(transaction_id, number) == number
