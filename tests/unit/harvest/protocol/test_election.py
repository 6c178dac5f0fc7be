"""The candidate's decisions, with a clock of the test's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_outbox.harvest.protocol.election import Candidate, Change, Lead, StandBy, Standing

TIMEOUT = 2.0


def leader(now: float = 0.0) -> Candidate:
    candidate = Candidate(TIMEOUT)
    assert candidate.assigned(now) == Lead()
    return candidate


def test_a_member_stands_by_until_it_owns_the_partition() -> None:
    candidate = Candidate(TIMEOUT)
    candidate.heartbeat_read(0.0)
    assert candidate.standing is Standing.STANDBY
    assert not candidate.wants_confirmation(0.1)
    assert candidate.assigned(1.0) == Lead()
    assert candidate.standing is Standing.LEADER


def test_a_leader_that_reads_its_heartbeats_goes_on() -> None:
    candidate = leader()
    for tenth in range(1, 100):
        now = tenth / 10
        candidate.heartbeat_read(now - 0.05)
        assert candidate.passed(now) is None
    assert candidate.standing is Standing.LEADER
    assert not candidate.wants_confirmation(10.0)


def test_a_leader_that_reads_none_steps_down_after_the_timeout_and_not_before() -> None:
    candidate = leader(10.0)
    assert candidate.passed(10.0 + TIMEOUT) is None
    assert isinstance(candidate.passed(10.0 + TIMEOUT + 0.001), StandBy)
    assert candidate.standing is Standing.STANDBY


def test_a_heartbeat_counts_from_when_it_was_sent() -> None:
    candidate = leader(0.0)
    candidate.heartbeat_read(0.5)
    assert candidate.passed(2.4) is None
    assert isinstance(candidate.passed(2.6), StandBy)


def test_after_stepping_down_it_takes_a_heartbeat_sent_since_and_the_groups_word() -> None:
    candidate = leader(0.0)
    candidate.passed(3.0)
    candidate.heartbeat_read(2.9)
    assert not candidate.wants_confirmation(3.1)
    assert candidate.confirmed(3.1, 3.2) is None
    candidate.heartbeat_read(3.2)
    assert candidate.wants_confirmation(3.3)
    assert candidate.standing is Standing.STANDBY
    assert candidate.confirmed(3.3, 3.4) == Lead()


def test_a_word_that_the_group_was_asked_for_before_the_step_down_does_not_count() -> None:
    candidate = leader(0.0)
    candidate.passed(3.0)
    candidate.heartbeat_read(3.1)
    assert candidate.confirmed(2.9, 3.2) is None
    assert candidate.standing is Standing.STANDBY


def test_a_heartbeat_that_travelled_too_long_lets_nobody_lead() -> None:
    candidate = leader(0.0)
    candidate.passed(3.0)
    candidate.heartbeat_read(3.1)
    assert not candidate.wants_confirmation(3.2 + TIMEOUT)
    assert candidate.confirmed(3.2, 3.2 + TIMEOUT) is None


def test_revoked_means_standing_by_and_the_next_owner_leads_at_once() -> None:
    candidate = leader()
    assert candidate.revoked("because") == StandBy("because")
    candidate.heartbeat_read(1.0)
    assert not candidate.wants_confirmation(1.1)
    assert candidate.revoked() is None
    assert candidate.assigned(5.0) == Lead()


def test_a_fenced_leader_leads_again_only_on_what_it_sent_and_asked_after_that() -> None:
    candidate = leader()
    candidate.heartbeat_read(0.9)
    candidate.fenced(1.0)
    assert candidate.standing is Standing.FENCED
    assert not candidate.wants_confirmation(1.1)
    assert candidate.passed(100.0) is None
    candidate.heartbeat_read(100.1)
    assert candidate.confirmed(0.95, 100.2) is None
    assert candidate.confirmed(100.15, 100.2) == Lead()


def test_a_fenced_member_that_loses_the_partition_stands_by() -> None:
    candidate = leader()
    candidate.fenced(1.0)
    assert candidate.revoked() is None
    assert candidate.standing is Standing.STANDBY


moves = st.sampled_from(["assigned", "revoked", "read", "confirmed", "passed", "fenced"])


@given(st.lists(st.tuples(moves, st.floats(0, 3), st.floats(0, 3)), max_size=40))
def test_invariants_hold_whatever_happens(steps: list[tuple[str, float, float]]) -> None:
    candidate, now, owner = Candidate(TIMEOUT), 0.0, False
    proof, stepped_down = float("-inf"), float("-inf")
    for step, elapsed, age in steps:
        now += elapsed
        before = candidate.standing
        change: Change | None = None
        if step == "assigned":
            change = candidate.assigned(now)
            proof = now if not owner else proof
            owner = True
        elif step == "revoked":
            change, owner = candidate.revoked(), False
        elif step == "read":
            candidate.heartbeat_read(now - age)
            proof = max(proof, now - age) if owner else proof
        elif step == "confirmed":
            change = candidate.confirmed(now - age, now)
            if change == Lead():
                assert now - age > stepped_down
                assert proof > stepped_down
                assert now - proof < TIMEOUT
        elif step == "passed":
            change = candidate.passed(now)
            assert candidate.standing is not Standing.LEADER or now - proof <= TIMEOUT
            stepped_down = now if isinstance(change, StandBy) else stepped_down
        else:
            candidate.fenced(now)
            stepped_down = now
        assert owner or candidate.standing is Standing.STANDBY
        assert (change == Lead()) == (before is not Standing.LEADER and candidate.standing is Standing.LEADER)
