"""Every refusal narrows, whatever is refused with what, until it is known by name."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.parking import Caution, ParkedLanes
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


def refused_alone(caution: Caution, number: int, *, parked: bool) -> Cause:
    """What a record is set aside for, that is refused alone with an unclear error; the retry ends."""
    caution.failed([number], "simulated", certain=True, explained=False, unclear=True, parked=parked)
    refusal = caution.condemned[parked][number]
    if parked:
        caution.refused_again({number: refusal})
        caution.end_retry()
    else:
        caution.forget([number], parked=False)
    assert not caution.condemned[parked]
    return refusal.cause


def test_an_unclear_error_condemns_nothing_while_nothing_else_is_taken() -> None:
    caution = Caution()
    assert {refused_alone(caution, 7, parked=parked) for parked in (False, *[True] * 20)} == {Cause.UNTRIED}


def test_an_unclear_error_condemns_what_is_refused_alone_again_and_again_while_others_are_taken() -> None:
    caution, found = Caution(), []
    for others in range(100, 105):
        found.append(refused_alone(caution, 7, parked=True))
        caution.settled([others], parked=False)
    assert found == [Cause.UNTRIED, Cause.UNTRIED, Cause.REFUSED, Cause.REFUSED, Cause.REFUSED]


def test_a_record_that_is_taken_after_an_unclear_error_has_a_clean_slate() -> None:
    caution = Caution()
    for _ in range(5):
        for _ in range(2):
            assert refused_alone(caution, 7, parked=True) is Cause.UNTRIED
            caution.settled([1], parked=False)
        caution.settled([7], parked=True)


def test_an_unclear_error_narrows_as_any_other() -> None:
    caution = Caution()
    caution.failed([2, 3], "simulated", certain=False, explained=False, unclear=True, parked=False)
    assert portions(caution, [1, 2, 3, 4]) == [[1], [2], [3], [4]]


def test_published_records_leave_until_their_batch_is_settled() -> None:
    lanes = ParkedLanes({}, (), {"t": 3})
    lanes.gone([("t", "k")], unparked={1: [7]})
    assert lanes.leaving == (7,)
    lanes.settled(1)
    assert lanes.leaving == ()
    lanes.settled(2)
    lanes.gone([("t", "k")], unparked={2: [8]})  # heard of later
    assert lanes.leaving == ()
