"""The states of a Kafka transaction: only a retriable error is tried again, and a commit is never taken for failed."""

from __future__ import annotations

import pytest

from airflow_outbox.errors import KafkaError, PublishError, UncertainCommitError
from airflow_outbox.harvest.protocol.transaction import Call, Complaint, State, Transaction

TO = {
    State.UNFENCED: [],
    State.READY: [Call.FENCE],
    State.OPEN: [Call.FENCE, Call.BEGIN],
}


def brought_to(state: State) -> Transaction:
    transaction = Transaction()
    for call in TO[state]:
        transaction.begins(call)
        transaction.succeeded(call)
    assert transaction.state is state
    return transaction


def test_the_way_of_a_transaction() -> None:
    transaction = brought_to(State.OPEN)
    transaction.begins(Call.PUBLISH)
    transaction.succeeded(Call.PUBLISH)
    transaction.begins(Call.COMMIT)
    assert transaction.state is State.COMMITTING
    transaction.succeeded(Call.COMMIT)
    assert transaction.state is State.READY


@pytest.mark.parametrize(
    ("state", "call"),
    [
        (state, call)
        for state, calls in {
            State.UNFENCED: {Call.BEGIN, Call.PUBLISH, Call.COMMIT},
            State.READY: {Call.FENCE, Call.PUBLISH, Call.COMMIT},
            State.OPEN: {Call.FENCE, Call.BEGIN},
        }.items()
        for call in sorted(calls)
    ],
)
def test_a_call_out_of_turn_is_refused(state: State, call: Call) -> None:
    with pytest.raises(KafkaError, match="another view"):
        brought_to(state).begins(call)


def test_a_retriable_error_is_tried_again_until_the_deadline() -> None:
    transaction = brought_to(State.OPEN)
    transaction.begins(Call.COMMIT)
    timed_out = Complaint("timed out", retriable=True)
    assert transaction.failed(Call.COMMIT, timed_out, in_time=True)
    with pytest.raises(UncertainCommitError):
        transaction.failed(Call.COMMIT, timed_out, in_time=False)


@pytest.mark.parametrize(
    "complaint",
    [
        Complaint("abortable", abortable=True),
        Complaint("fatal", fatal=True),
        Complaint("fatal, and retriable at that", fatal=True, retriable=True),
        Complaint("says nothing of itself"),
    ],
)
def test_no_error_of_a_commit_says_that_it_has_failed(complaint: Complaint) -> None:
    transaction = brought_to(State.OPEN)
    transaction.begins(Call.COMMIT)
    with pytest.raises(UncertainCommitError):
        transaction.failed(Call.COMMIT, complaint, in_time=True)
    assert transaction.state is State.UNCERTAIN
    with pytest.raises(KafkaError, match="uncertain"):
        transaction.begins(Call.COMMIT)


def test_before_the_commit_a_producer_is_abandoned() -> None:
    transaction = brought_to(State.OPEN)
    transaction.begins(Call.PUBLISH)
    error = transaction.given_up(Call.PUBLISH, "no")
    assert type(error) is PublishError
    assert transaction.state is State.ABANDONED
