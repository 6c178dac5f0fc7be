"""The verdict from facts: every fact that matters, and what holds whatever the facts are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.values.example_facts import (
    BOUNDS,
    CLUSTERED,
    ERROR,
    LED,
    NOW,
    OWED,
    PARKED,
    UNREACHED,
    WAITING,
    ago,
    away,
    shards,
    trouble,
)

from airflow_outbox.values.judging import (
    Fault,
    cluster_faults,
    divided,
    fault_of,
    judge,
    present_error,
    standing_fault,
    unknown,
)
from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.verdict import Backlog, Facts, ParkedRefusals, State, TroubleKind

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
    "held": (
        replace(CLUSTERED, troubles=(away("a:1"),)),
        State.HELD,
        5,
        "all waits for cluster west: can't reach Kafka at w:9092",
        "Check bootstrap.servers",
    ),
    "held by what a term has found": (
        replace(CLUSTERED, last_error="cluster west: there is no ledger. Run init", last_error_at=ago(0.5)),
        State.HELD,
        0.5,
        "all waits for cluster west: there is no ledger",
        "Run init",
    ),
    "another member does not reach a backup": (
        replace(CLUSTERED, troubles=(away("b:2"),)),
        State.HEALTHY,
        None,
        "",
        "",
    ),
    "an owed cluster is away": (
        replace(
            CLUSTERED,
            clusters=(*CLUSTERED.clusters[:1], OWED),
            troubles=(away("a:1"),),
            last_error="cluster west: away",
            last_error_at=ago(0.5),
        ),
        State.HEALTHY,
        None,
        "",
        "",
    ),
    "nobody leads, and a backup is away": (
        replace(CLUSTERED, heard_at=ago(7), troubles=(away("a:1"),)),
        State.NO_LEADER,
        7,
        "nobody leads",
        "",
    ),
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
    clusters=st.just(())
    | st.just(CLUSTERED.clusters)
    | st.just((CLUSTERED.clusters[0], replace(OWED, owed_since=ago(-5)))),
)


def test_a_cluster_that_does_not_count_is_a_note() -> None:
    verdict = judge(replace(CLUSTERED, clusters=(*CLUSTERED.clusters[:1], OWED), troubles=(away("b:2"),)), BOUNDS)
    assert verdict.state is State.HEALTHY
    assert verdict.notes == (
        "cluster west does not count since 2026-11-23 11:58:30 UTC: an operator has detached it. `airflow-outbox "
        "clusters attach west` publishes what it has missed",
    )
    behind = replace(OWED, owed_since=ago(7200))
    [note] = judge(replace(CLUSTERED, clusters=(*CLUSTERED.clusters[:1], behind)), BOUNDS).notes
    assert "detached it. The oldest batch that it misses was published 2 h ago. `airflow-outbox" in note


def test_a_cluster_is_not_all_right_while_all_waits_for_it() -> None:
    held = replace(CLUSTERED, troubles=(away("a:1"),))
    fault = fault_of("west", held)
    assert fault is not None
    assert (fault.error[:22], fault.since) == ("can't reach Kafka at w", ago(5))
    assert fault_of("primary", held) is None
    assert fault_of("west", replace(held, published_at=ago(1))) is None


QUOTA = trouble("a:1", kind=TroubleKind.QUOTA)
ERRORS = {
    "nothing is wrong": (LED, None),
    "a quota": (replace(LED, troubles=(QUOTA,)), Fault(f"a:1: {UNREACHED}", ago(5))),
    "another member's quota": (replace(LED, troubles=(replace(QUOTA, member="b:2"),)), None),
    "a topic's": (replace(LED, parked=PARKED), Fault("topic x does not exist", ago(9))),
    "a record's": (replace(LED, parked={Cause.HEADERS: ParkedRefusals(1, ago(9), "no header")}), None),
    "what keeps all from being published, first": (
        replace(LED, parked=PARKED, troubles=(trouble("a:1"),)),
        Fault(f"a:1: {UNREACHED}", ago(5)),
    ),
    "a quota of one that leads no more": (replace(LED, heard_at=ago(60), troubles=(QUOTA,)), None),
}


@pytest.mark.parametrize(("facts", "error"), ERRORS.values(), ids=ERRORS)
def test_the_error_that_operators_see_is_one_that_stands(facts: Facts, error: Fault | None) -> None:
    assert present_error(replace(facts, published_at=ago(9.5)), BOUNDS) == error


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
        assert not cluster_faults(facts)
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


TAKE_OVER = replace(trouble("a:1", kind=TroubleKind.TAKE_OVER), shard=1)
OF_SHARDS = {
    "all are well": (shards(), State.HEALTHY, "2 members lead 4 shards, and nothing waits", ()),
    "one member": (
        shards((1, {"member": "a:1"}), (3, {"member": "a:1"})),
        State.HEALTHY,
        "a:1 leads 4 shards, and nothing waits",
        (),
    ),
    "an error, while others publish": (
        shards((1, ERROR), (2, {"published_at": ago(0.1)})),
        State.STALLED,
        "shard 1: b:1: disk full",
        (),
    ),
    "the same error of two": (shards((1, ERROR), (3, ERROR)), State.STALLED, "shards 1 and 3: b:1: disk full", ()),
    "nobody leads one": (shards((2, {"member": None})), State.NO_LEADER, "shard 2: nobody leads", ()),
    "nobody leads any": (
        shards(*((number, {"member": None}) for number in range(4))),
        State.NO_LEADER,
        "nobody leads",
        (),
    ),
    "the graver of two, and a note": (
        shards((0, {"backlog": Backlog(7, oldest_age=90.0)}), (3, ERROR)),
        State.STALLED,
        "shard 3: b:1: disk full",
        ("LAGGING: shard 0: 7 records wait, the oldest for 90.0 s",),
    ),
    "one is idle too long": (
        shards((2, {"backlog": Backlog(7, oldest_age=90.0), "published_at": ago(31)})),
        State.STALLED,
        "shard 2: 7 records wait, the oldest for 90.0 s, and none was published for 31.0 s",
        (),
    ),
    "two lag": (
        shards(*((number, {"backlog": Backlog(number, oldest_age=60.0 + number)}) for number in (1, 2))),
        State.LAGGING,
        "shard 2: 2 records wait, the oldest for 62.0 s",
        ("LAGGING, too: shard 1",),
    ),
    "parked in one": (shards((3, {"parked": PARKED})), State.LAGGING, "shard 3: records are parked", ()),
    "paused": (
        shards(*((number, {"paused": True, "paused_at": ago(7)}) for number in range(4))),
        State.PAUSED,
        "an operator has paused it: what is stashed waits",
        (),
    ),
    "halted": (
        shards(*((number, {"doubt": "another timeline"}) for number in range(4))),
        State.HALTED,
        "nothing is published, and nobody can tell what is: another timeline",
        (),
    ),
    "a take-over that fails is its shard's alone": (
        shards(*((number, {"troubles": (TAKE_OVER,), "published_at": None}) for number in (0, 2))),
        State.HEALTHY,
        "2 members lead 4 shards, and nothing waits",
        (),
    ),
    "a shard without a leader has that reason": (
        shards(
            *((number, {"troubles": (TAKE_OVER,)}) for number in (0, 2)),
            (1, {"troubles": (TAKE_OVER,), "member": None}),
        ),
        State.STALLED,
        "shard 1: nobody can lead. a:1: can't reach Kafka at k:9092: Connection refused",
        (),
    ),
    "counted only as a whole": (
        Facts.of([replace(each, backlog=None) for each in shards().shards], backlog=Backlog(9, oldest_age=70.0)),
        State.LAGGING,
        "9 records wait, the oldest for 70.0 s",
        (),
    ),
}


@pytest.mark.parametrize("name", OF_SHARDS)
def test_the_gravest_shard_is_the_verdict_and_is_named(name: str) -> None:
    facts, state, cause, notes = OF_SHARDS[name]
    verdict = judge(facts, BOUNDS)
    assert (verdict.state, verdict.notes) == (state, notes)
    assert verdict.cause.startswith(cause)


def test_a_shards_remedy_is_for_that_shard() -> None:
    idle = shards((2, {"backlog": Backlog(7, oldest_age=90.0), "published_at": ago(31)}))
    assert "handover --shard 2" in judge(idle, BOUNDS).remedy
