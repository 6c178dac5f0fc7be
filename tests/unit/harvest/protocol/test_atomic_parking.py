"""The parked source transactions that can be published now, and the endless one that is given up."""

from __future__ import annotations

import pytest

from airflow_outbox.errors import PublishError, RecordsRefusedError
from airflow_outbox.harvest.protocol.atomic_parking import WholeTransactions
from airflow_outbox.harvest.protocol.parking import Caution, ParkedLanes
from airflow_outbox.values.pages import Length, OutboxRow
from airflow_outbox.values.refusals import Cause, Refusal


def row(number: int, transaction_id: int, key: str = "k") -> OutboxRow:
    return (number, "t", key, "v", [], [], None, 2, transaction_id)


def due(rows: list[OutboxRow], lengths: dict[int, Length]) -> list[int]:
    whole = WholeTransactions(ParkedLanes({}, ()), Caution(), max_transaction_records=10)
    retry = whole.due(rows, {}, lengths=lengths)
    assert retry.refused == {}
    return [each[0] for each in retry.published]


def test_a_transaction_of_which_rows_are_missing_waits_and_what_comes_after_it_in_its_lane() -> None:
    rows = [row(1, 7), row(2, 7), row(3, 8), row(4, 9, "other")]
    assert due(rows, {7: Length(3, 9), 8: Length(1, 3), 9: Length(1, 4)}) == [4]


def test_a_transaction_that_another_view_has_published_meanwhile_waits() -> None:
    rows = [row(1, 7), row(2, 7), row(3, 8), row(4, 9, "other")]
    assert due(rows, {8: Length(1, 3), 9: Length(1, 4)}) == [4]


def test_what_waits_for_a_refused_record_was_tried_with_it_but_not_what_is_there_in_part() -> None:
    whole = WholeTransactions(ParkedLanes({}, ()), Caution(), max_transaction_records=10)
    rows = [row(1, 7), row(2, 7, "other"), row(3, 8), row(4, 9, "third")]
    refusal = Refusal(Cause.TOO_LARGE, "simulated")
    retry = whole.due(rows, {1: refusal}, lengths={7: Length(2, 2), 8: Length(1, 3), 9: Length(2, 9)})
    assert (retry.published, retry.refused, retry.others) == ([], {1: refusal}, [2, 3])


def test_a_transaction_that_may_not_be_tried_waits_and_its_refusal_is_no_news() -> None:
    whole = WholeTransactions(ParkedLanes({}, ()), Caution(), max_transaction_records=10)
    rows = [row(1, 7), row(2, 7, "other"), row(3, 8, "other"), row(4, 9, "third")]
    retry = whole.due(rows, {1: Refusal(Cause.TOO_LARGE, "simulated")}, lengths={8: Length(1, 3), 9: Length(1, 4)})
    assert ([each[0] for each in retry.published], retry.refused, retry.others) == ([4], {}, [1, 2, 3])


def streaming(whole: WholeTransactions, *, records: int, seconds: float = 0.0) -> None:
    lengths = {7: Length(30, 90), 8: Length(40, 95)}
    whole.require_end(lengths, records=records, seconds=seconds, most_seconds=5.0)


def test_a_stream_within_its_bounds_goes_on() -> None:
    caution = Caution()
    whole = WholeTransactions(ParkedLanes({}, ()), caution, max_transaction_records=50)
    streaming(whole, records=100, seconds=5.0)
    whole.require_end({}, records=1000, seconds=1000.0, most_seconds=5.0)
    assert not caution.condemned_transactions
    assert not caution.slow_transactions


def test_the_longest_transaction_is_given_up_that_keeps_too_many_others_in_a_stream() -> None:
    caution = Caution()
    whole = WholeTransactions(ParkedLanes({}, ()), caution, max_transaction_records=50)
    with pytest.raises(RecordsRefusedError, match=r"transaction 8 has 40 records.* and 61 others"):
        streaming(whole, records=101)
    assert caution.condemned_transactions.keys() == {8}


def test_a_transaction_that_is_too_slow_is_tried_once_more_and_then_given_up() -> None:
    caution = Caution()
    whole = WholeTransactions(ParkedLanes({}, ()), caution, max_transaction_records=50)
    with pytest.raises(PublishError, match="transaction 8 was not published within 5 s; it is tried again"):
        streaming(whole, records=60, seconds=5.1)
    assert not caution.condemned_transactions
    with pytest.raises(RecordsRefusedError, match=r"twice not published within 5 s\. Raise transaction_timeout"):
        streaming(whole, records=60, seconds=5.1)
    assert caution.condemned_transactions.keys() == {8}
