"""Every refusal narrows, whatever is refused with what, until it is known by name."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.parking import Caution
from airflow_outbox.values.refusals import Cause, Refusal

REFUSED = Refusal(Cause.REFUSED, "simulated")
MOST_FAILURES = 5
"""For each refused record, whatever its batch: it is believed once, and then divided by a hundred."""


def portions(caution: Caution, ids: list[int]) -> list[list[int]]:
    return [[row[0] for row in portion] for portion in caution.portions([(n, "t", "k") for n in ids], parked=False)]


def fail(caution: Caution, ids: list[int], *, explained: bool = False) -> None:
    caution.failed(ids, "simulated", certain=len(ids) == 1, explained=explained, parked=False)


def test_an_explanation_is_believed_once_of_each_record() -> None:
    caution = Caution()
    fail(caution, [1, 2], explained=True)
    fail(caution, [3], explained=True)
    assert not caution.is_careful
    fail(caution, [2, 3], explained=True)
    assert portions(caution, [1, 2, 3, 4]) == [[1], [2], [3], [4]]


def test_others_are_sent_together() -> None:
    caution = Caution()
    fail(caution, [3, 4])
    assert portions(caution, [1, 2, 3, 4, 5, 6]) == [[1, 2], [3], [4], [5, 6]]
    caution.settled([3, 4], parked=False)
    assert portions(caution, [1, 2, 3]) == [[1, 2, 3]]
    assert not caution.is_careful


def test_what_is_condemned_has_its_reason_until_that_is_on_record() -> None:
    caution = Caution()
    fail(caution, [7])
    assert caution.condemned == {False: {7: Refusal(Cause.REFUSED, "simulated")}, True: {}}
    caution.forget([7], parked=False)
    assert caution.condemned == {False: {}, True: {}}


def test_what_a_retry_has_found_stays_condemned_until_the_retry_ends() -> None:
    caution = Caution()
    for number in (7, 8):
        caution.failed([number], "simulated", certain=True, explained=False, parked=True)
        caution.refused_again({number: REFUSED})
    assert caution.condemned[True].keys() == {7, 8}
    caution.end_retry()
    assert caution.condemned[True] == {}


def test_the_end_of_a_retry_keeps_what_is_not_on_record_yet() -> None:
    caution = Caution()
    for number in (7, 8):
        caution.failed([number], "simulated", certain=True, explained=False, parked=True)
    caution.refused_again({7: REFUSED})
    caution.end_retry()
    assert caution.condemned[True].keys() == {8}


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 30_000), st.sets(st.integers(1, 30_000), min_size=1, max_size=4), st.booleans())
def test_few_failures_find_each_refused_record(records: int, refused: set[int], explained: bool) -> None:
    caution = Caution()
    refused = {1 + number % records for number in refused}
    left, failures = list(range(1, records + 1)), 0
    while True:
        left = [number for number in left if number not in caution.condemned[False]]
        bad = next((portion for portion in portions(caution, left) if not refused.isdisjoint(portion)), None)
        if bad is None:
            break
        failures += 1
        fail(caution, bad, explained=explained)
    assert caution.condemned[False].keys() == refused
    assert failures <= MOST_FAILURES * len(refused)
