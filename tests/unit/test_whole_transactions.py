"""What of the parked source transactions can be published now."""

from __future__ import annotations

from airflow_outbox.harvest.protocol.parking import Cause, Caution, ParkedLanes, Refusal
from airflow_outbox.harvest.protocol.whole_transactions import WholeTransactions
from airflow_outbox.pages import Length, OutboxRow


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
