"""The states of a Kafka transaction: only a retriable error is tried again, and a commit is never taken for failed."""

from __future__ import annotations

import pytest

from airflow_outbox.errors import KafkaError, PublishError, UncertainCommitError
from airflow_outbox.harvest.protocol.producer_state import Call, Complaint, ProducerState, Transaction, smallest_gap

GAP = 0.4
TO = {
    ProducerState.UNFENCED: [],
    ProducerState.READY: [Call.FENCE],
    ProducerState.OPEN: [Call.FENCE, Call.BEGIN],
}


def brought_to(state: ProducerState) -> Transaction:
    transaction = Transaction(gap=GAP)
    for call in TO[state]:
        transaction.begins(call)
        transaction.succeeded(call, seconds=0)
    assert transaction.state is state
    return transaction


def test_the_way_of_a_transaction() -> None:
    transaction = brought_to(ProducerState.OPEN)
    transaction.begins(Call.PUBLISH)
    transaction.succeeded(Call.PUBLISH, seconds=0)
    transaction.begins(Call.COMMIT)
    assert transaction.state is ProducerState.COMMITTING
    transaction.succeeded(Call.COMMIT, seconds=0)
    assert transaction.state is ProducerState.READY
    assert not transaction.needs_epoch


@pytest.mark.parametrize(
    ("state", "call"),
    [
        (state, call)
        for state, calls in {
            ProducerState.UNFENCED: {Call.BEGIN, Call.PUBLISH, Call.COMMIT},
            ProducerState.READY: {Call.FENCE, Call.PUBLISH, Call.COMMIT},
            ProducerState.OPEN: {Call.FENCE, Call.BEGIN},
        }.items()
        for call in sorted(calls)
    ],
)
def test_a_call_out_of_turn_is_refused(state: ProducerState, call: Call) -> None:
    with pytest.raises(KafkaError, match="another view"):
        brought_to(state).begins(call)


def test_a_retriable_error_is_tried_again_until_the_deadline() -> None:
    transaction = brought_to(ProducerState.OPEN)
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
    transaction = brought_to(ProducerState.OPEN)
    transaction.begins(Call.COMMIT)
    with pytest.raises(UncertainCommitError):
        transaction.failed(Call.COMMIT, complaint, in_time=True)
    assert transaction.state is ProducerState.UNCERTAIN
    with pytest.raises(KafkaError, match="uncertain"):
        transaction.begins(Call.COMMIT)


def test_before_the_commit_a_producer_is_abandoned() -> None:
    transaction = brought_to(ProducerState.OPEN)
    transaction.begins(Call.PUBLISH)
    error = transaction.given_up(Call.PUBLISH, "no")
    assert type(error) is PublishError
    assert transaction.state is ProducerState.ABANDONED


@pytest.mark.parametrize("slow", [Call.PUBLISH, Call.COMMIT])
def test_after_a_call_that_may_have_been_made_twice_no_transaction_is_begun(slow: Call) -> None:
    transaction = brought_to(ProducerState.OPEN)
    for call in (Call.PUBLISH, Call.PUBLISH, Call.COMMIT):
        transaction.begins(call)
        transaction.succeeded(call, seconds=GAP if call is slow else 0.99 * GAP)
    assert transaction.state is ProducerState.DOUBTFUL
    assert transaction.needs_epoch
    with pytest.raises(KafkaError, match="another view"):
        transaction.begins(Call.BEGIN)


def test_initialising_may_take_long() -> None:
    transaction = Transaction(gap=GAP)
    transaction.begins(Call.FENCE)
    transaction.succeeded(Call.FENCE, seconds=100)
    assert not transaction.needs_epoch


@pytest.mark.parametrize(("backoff", "most", "gap"), [(500, 1000, 0.4), ("100", "1000", 0.08), (2000, 1000, 1.0)])
def test_a_request_is_sent_again_after_the_backoff_less_its_jitter(backoff: object, most: object, gap: float) -> None:
    settings = {"retry.backoff.ms": backoff, "retry.backoff.max.ms": most}
    assert smallest_gap(settings) == pytest.approx(gap)
