"""Who leads: the candidate's decisions, with a clock of the test's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.election import Candidate, Lead, StandBy, Standing

TIMEOUT = 2.0


def leader(now: float = 0.0) -> Candidate:
    candidate = Candidate(TIMEOUT)
    assert candidate.assigned(now) == Lead()
    return candidate


def test_a_member_stands_by_until_it_owns_the_partition() -> None:
    candidate = Candidate(TIMEOUT)
    assert candidate.standing is Standing.STANDBY
    assert candidate.heartbeat_read(0.0, 0.1) is None
    assert candidate.assigned(1.0) == Lead()
    assert candidate.standing is Standing.LEADER


def test_a_leader_that_reads_its_heartbeats_goes_on() -> None:
    candidate = leader()
    for tenth in range(1, 100):
        now = tenth / 10
        assert candidate.heartbeat_read(now - 0.05, now) is None
        assert candidate.passed(now) is None
    assert candidate.standing is Standing.LEADER


def test_a_leader_that_reads_none_steps_down_after_the_timeout_and_not_before() -> None:
    candidate = leader(10.0)
    assert candidate.passed(10.0 + TIMEOUT) is None
    assert isinstance(candidate.passed(10.0 + TIMEOUT + 0.001), StandBy)
    assert candidate.standing is Standing.STANDBY


def test_a_heartbeat_counts_from_when_it_was_sent() -> None:
    candidate = leader(0.0)
    candidate.heartbeat_read(0.5, 1.9)
    assert candidate.passed(2.4) is None
    assert isinstance(candidate.passed(2.6), StandBy)


def test_after_stepping_down_only_a_heartbeat_sent_since_then_lets_it_lead_again() -> None:
    candidate = leader(0.0)
    candidate.passed(3.0)
    assert candidate.heartbeat_read(2.9, 3.1) is None
    assert candidate.heartbeat_read(3.1, 3.2) == Lead()


def test_a_heartbeat_that_travelled_too_long_lets_nobody_lead() -> None:
    candidate = leader(0.0)
    candidate.passed(3.0)
    assert candidate.heartbeat_read(3.1, 3.2 + TIMEOUT) is None


def test_revoked_means_standing_by_and_the_next_owner_leads_at_once() -> None:
    candidate = leader()
    assert isinstance(candidate.revoked(), StandBy)
    assert candidate.heartbeat_read(1.0, 1.1) is None
    assert candidate.revoked() is None
    assert candidate.assigned(5.0) == Lead()


def test_a_fenced_leader_waits_for_a_heartbeat_that_it_sent_after_that() -> None:
    candidate = leader()
    candidate.fenced(1.0)
    assert candidate.standing is Standing.FENCED
    assert candidate.heartbeat_read(0.9, 1.1) is None
    assert candidate.passed(100.0) is None
    assert candidate.heartbeat_read(100.1, 100.2) == Lead()


def test_a_fenced_member_that_loses_the_partition_stands_by() -> None:
    candidate = leader()
    candidate.fenced(1.0)
    assert candidate.revoked() is None
    assert candidate.standing is Standing.STANDBY


steps = st.lists(
    st.tuples(st.sampled_from(["assigned", "revoked", "read", "passed", "fenced"]), st.floats(0, 3), st.floats(0, 3)),
    max_size=40,
)


@given(steps)
def test_invariants_hold_whatever_happens(steps: list[tuple[str, float, float]]) -> None:
    candidate, now, owner = Candidate(TIMEOUT), 0.0, False
    proof, stepped_down = float("-inf"), float("-inf")
    for step, elapsed, age in steps:
        now += elapsed
        before = candidate.standing
        if step == "assigned":
            change = candidate.assigned(now)
            proof = now if not owner else proof
            owner = True
        elif step == "revoked":
            change, owner = candidate.revoked(), False
        elif step == "read":
            change = candidate.heartbeat_read(now - age, now)
            proof = max(proof, now - age)
            if change == Lead():
                assert now - age > stepped_down
                assert age < TIMEOUT
        elif step == "passed":
            change = candidate.passed(now)
            if candidate.standing is Standing.LEADER:
                assert now - proof <= TIMEOUT
            if isinstance(change, StandBy):
                stepped_down = now
        else:
            change = candidate.fenced(now)  # type: ignore[func-returns-value]
            stepped_down = now
        assert owner or candidate.standing is Standing.STANDBY
        assert (change == Lead()) == (before is not Standing.LEADER and candidate.standing is Standing.LEADER)
