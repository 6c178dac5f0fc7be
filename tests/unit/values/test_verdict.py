"""The verdict from facts: every fact that matters, and what holds whatever the facts are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.verdict import (
    Backlog,
    Facts,
    ParkedRefusals,
    State,
    Thresholds,
    Trouble,
    TroubleKind,
    divided,
    in_words,
    judge,
    standing_fault,
    unknown,
)

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
BOUNDS = Thresholds(lagging_after=60, stalled_after=30, silence=6)
UNREACHED = "can't reach Kafka at k:9092: Connection refused. Check bootstrap.servers"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def trouble(
    member: str = "a:1", *, since: float = 5, told: float = 1, kind: TroubleKind = TroubleKind.KAFKA
) -> Trouble:
    return Trouble(member, kind, UNREACHED, ago(since), ago(told))


LED = Facts(now=NOW, member="a:1", heard_at=ago(0.5), took_over_at=ago(3600), published_at=ago(1))
WAITING = replace(LED, backlog=Backlog(7, oldest_age=40.0))
PARKED = {Cause.UNKNOWN_TOPIC: ParkedRefusals(3, ago(9), "topic x does not exist")}

CASES = {
    "all is well": (LED, State.HEALTHY, None, "a:1 leads, and nothing waits", ""),
    "records on their way": (WAITING, State.HEALTHY, None, "7 records are on their way", ""),
    "old records": (
        replace(WAITING, backlog=Backlog(100, is_exact=False, oldest_age=61.0)),
        State.LAGGING,
        61,
        "more than 100 records wait, the oldest for 61.0 s",
        "",
    ),
    "none published": (
        replace(WAITING, published_at=ago(31)),
        State.STALLED,
        31,
        "none was published for 31.0 s",
        "handover",
    ),
    "a new leader has its time": (
        replace(WAITING, published_at=ago(900), took_over_at=ago(3)),
        State.HEALTHY,
        None,
        "",
        "",
    ),
    "paused": (replace(WAITING, paused=True, paused_at=ago(7)), State.PAUSED, 7, "paused", "resume"),
    "held": (replace(WAITING, held_by="backup"), State.HELD, None, "cluster backup", "detach"),
    "halted": (replace(LED, doubt="another timeline"), State.HALTED, None, "another timeline", "adopt"),
    "halted since": (
        replace(LED, doubt="another timeline", last_error="another timeline. Nothing was purged", last_error_at=ago(4)),
        State.HALTED,
        4,
        "another timeline",
        "adopt",
    ),
    "a leader's error": (
        replace(LED, last_error="disk full. Make room", last_error_at=ago(0.5)),
        State.STALLED,
        0.5,
        "a:1: disk full",
        "Make room",
    ),
    "an error before the last publication": (
        replace(LED, last_error="disk full. Make room", last_error_at=ago(2)),
        State.HEALTHY,
        None,
        "",
        "",
    ),
    "the leader can't reach Kafka": (
        replace(LED, published_at=ago(9), troubles=(trouble(),)),
        State.STALLED,
        5,
        "a:1: can't reach Kafka at k:9092: Connection refused",
        "Check bootstrap.servers",
    ),
    "nobody reaches Kafka": (
        replace(LED, heard_at=ago(7), troubles=(trouble(), trouble("b:2", since=8))),
        State.STALLED,
        8,
        "nobody can lead. b:2: can't reach Kafka",
        "Check bootstrap.servers",
    ),
    "a quota": (
        replace(WAITING, troubles=(trouble(kind=TroubleKind.QUOTA),)),
        State.LAGGING,
        5,
        "7 records wait",
        "Check",
    ),
    "a quota that holds nothing back": (
        replace(LED, troubles=(trouble(kind=TroubleKind.QUOTA),)),
        State.HEALTHY,
        None,
        "",
        "",
    ),
    "parked": (
        replace(LED, parked=PARKED),
        State.LAGGING,
        9,
        "(3 unknown_topic): topic x does not exist",
        "parked list",
    ),
    "parked for a moment": (
        replace(LED, parked={Cause.UNTRIED: ParkedRefusals(1, ago(9), "untried")}),
        State.HEALTHY,
        None,
        "",
        "",
    ),
    "nobody yet": (Facts(now=NOW), State.NO_LEADER, None, "nobody has led yet", "Start a harvester"),
    "ended in order": (replace(LED, member=None), State.NO_LEADER, 0.5, "nobody leads", "Start a harvester"),
    "frozen": (
        replace(LED, heard_at=ago(7)),
        State.NO_LEADER,
        7,
        "a:1 was last heard from 7.0 s ago",
        "Look at that process",
    ),
    "a clock set back": (replace(LED, heard_at=ago(-60)), State.NO_LEADER, -60, "clock was set back", "Start"),
    "a standby server": (replace(LED, is_standby=True), State.UNKNOWN, None, "standby", "Ask the primary"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_fact_has_its_verdict(name: str) -> None:
    facts, state, since, cause, remedy = CASES[name]
    verdict = judge(facts, BOUNDS)
    assert verdict.state is state
    assert verdict.since == (None if since is None else ago(since))
    assert cause in verdict.cause
    assert remedy in verdict.remedy
    assert verdict.remedy or state is State.HEALTHY


def test_a_member_that_alone_does_not_reach_kafka_is_a_note() -> None:
    verdict = judge(replace(LED, troubles=(trouble("b:2"),)), BOUNDS)
    assert (verdict.state, verdict.notes) == (State.HEALTHY, (f"b:2: {UNREACHED}",))


def test_a_word_from_the_future_is_no_news() -> None:
    assert judge(replace(LED, troubles=(trouble("b:2", told=-60),)), BOUNDS).notes == ()


def test_the_last_words_of_a_member_that_has_gone_are_a_note() -> None:
    verdict = judge(replace(LED, member=None, heard_at=ago(90), troubles=(trouble(since=60, told=60),)), BOUNDS)
    assert verdict.state is State.NO_LEADER
    assert verdict.notes == (f"the last that a:1 said: {UNREACHED}",)
    assert judge(replace(LED, member=None, troubles=(trouble(since=60, told=60),)), BOUNDS).notes == ()


def test_without_postgres_nothing_is_known() -> None:
    verdict = unknown("can't connect to Postgres: refused. Check the data source")
    assert verdict.state is State.UNKNOWN
    assert (verdict.cause, verdict.remedy) == ("can't connect to Postgres: refused", "Check the data source")
    assert divided("without a remedy") == ("without a remedy", "")


def test_states_and_durations_as_people_read_them() -> None:
    assert State.NO_LEADER.words == "NO LEADER"
    assert [in_words(each) for each in (0.25, 119.9, 120, 7200, 172_800)] == ["0.2 s", "119.9 s", "2 min", "2 h", "2 d"]


times = st.none() | st.floats(-1000, 1000).map(ago)
texts = st.none() | st.sampled_from(["x. Do y", "z", ""])
troubles = st.builds(
    trouble,
    st.sampled_from(["a:1", "b:2"]),
    since=st.floats(0, 99),
    told=st.floats(0, 99),
    kind=st.sampled_from(TroubleKind),
)
facts = st.builds(
    Facts,
    now=st.just(NOW),
    is_standby=st.booleans(),
    member=st.none() | st.sampled_from(["a:1", "b:2"]),
    heard_at=times,
    took_over_at=times,
    published_at=times,
    paused=st.booleans(),
    paused_at=times,
    doubt=texts,
    last_error=texts,
    last_error_at=times,
    backlog=st.none() | st.builds(Backlog, st.integers(0, 9), st.booleans(), st.none() | st.floats(0, 1e7)),
    parked=st.dictionaries(
        st.sampled_from(Cause), st.builds(ParkedRefusals, st.integers(1, 9), st.floats(0, 99).map(ago), st.just("why"))
    ),
    troubles=st.lists(troubles, max_size=3).map(tuple),
    held_by=st.none() | st.just("backup"),
)


@given(facts)
def test_whatever_the_facts_are(facts: Facts) -> None:
    verdict, leads = judge(facts, BOUNDS), facts.leads(BOUNDS)
    assert isinstance(verdict.state, State)
    assert verdict.cause
    if facts.is_standby:
        assert verdict.state is State.UNKNOWN
    else:
        assert (verdict.state is State.HALTED) == (facts.doubt is not None)
    if verdict.state is State.HEALTHY:
        assert leads
        assert not facts.paused
        assert facts.held_by is None
        assert standing_fault(facts, BOUNDS) is None
        assert facts.backlog is None or (facts.backlog.oldest_age or 0) <= BOUNDS.lagging_after
    if verdict.state is State.NO_LEADER:
        assert not leads
    if verdict.state in (State.PAUSED, State.HELD, State.LAGGING):
        assert leads


@given(facts)
def test_another_members_trouble_changes_no_state_while_somebody_leads(facts: Facts) -> None:
    before = judge(facts, BOUNDS)
    after = judge(replace(facts, troubles=(*facts.troubles, trouble("stranger:9"))), BOUNDS)
    if facts.leads(BOUNDS):
        assert after.state is before.state
    else:
        assert after.state in (before.state, State.STALLED)
