"""The metrics' present values."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.metric_values import of_member, of_outbox
from airflow_outbox.values import metrics
from airflow_outbox.values.judging import judge, unknown
from airflow_outbox.values.metrics import METRICS, Metric, Sample, Stage
from airflow_outbox.values.positions import GroupState, PositionsReport
from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.verdict import (
    Backlog,
    ClusterFacts,
    Facts,
    ParkedRefusals,
    State,
    Thresholds,
    Trouble,
    TroubleKind,
)

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
BOUNDS = Thresholds()


REPORT = PositionsReport(
    member="a:1",
    told_at=NOW - timedelta(seconds=2),
    groups={"following": 5, "left_alone": 1},
    behind={"west": 40},
    failures=3,
)
CLUSTERS = (ClusterFacts("primary", "primary"), ClusterFacts("west", "backup", 1))


def facts(**more: Any) -> Facts:
    led = {"member": "a:1", "heard_at": NOW - timedelta(seconds=0.5), "took_over_at": NOW, "rate": 7.0, "in_flight": 3}
    return Facts(now=NOW, **{**led, **more})


def values(found: Facts) -> dict[Metric, list[Sample]]:
    samples: dict[Metric, list[Sample]] = {}
    for sample in of_outbox(found, judge(found, BOUNDS), BOUNDS):
        samples.setdefault(sample.metric, []).append(sample)
    return samples


def value(found: Facts, metric: Metric) -> float:
    [sample] = values(found)[metric]
    return sample.value


def test_one_state_holds() -> None:
    samples = values(facts(paused=True))[metrics.VERDICT]
    assert [sample.labels["state"] for sample in samples] == list(State)
    assert [sample.labels["state"] for sample in samples if sample.value] == ["paused"]


def test_without_postgres_only_the_verdict_is_known() -> None:
    samples = list(of_outbox(None, unknown("can't connect"), BOUNDS))
    assert {sample.metric for sample in samples} == {metrics.VERDICT}
    assert [sample.labels["state"] for sample in samples if sample.value] == ["unknown"]


def test_what_waits() -> None:
    waiting = facts(backlog=Backlog(100_000, is_exact=False, oldest_age=61.5))
    assert value(waiting, metrics.BACKLOG) == 100_000
    assert value(waiting, metrics.BACKLOG_IS_EXACT) == 0
    assert value(waiting, metrics.OLDEST_AGE) == 61.5
    assert value(facts(), metrics.BACKLOG_IS_EXACT) == 1
    assert value(facts(), metrics.OLDEST_AGE) == 0


def test_what_nobody_knows_is_missing() -> None:
    uncounted = values(facts(backlog=None))
    assert not uncounted.keys() & {metrics.BACKLOG, metrics.BACKLOG_IS_EXACT, metrics.OLDEST_AGE}
    assert metrics.OLDEST_AGE not in values(facts(backlog=Backlog(1, oldest_age=None)))
    assert metrics.LEADER_SILENCE not in values(facts(member=None, heard_at=None))


def test_every_cause_of_parking_has_a_count() -> None:
    parked = {"headers": ParkedRefusals(2, NOW, "r"), "of an earlier release": ParkedRefusals(1, NOW, "r")}
    found = {sample.labels["cause"]: sample.value for sample in values(facts(parked=parked))[metrics.PARKED]}
    assert found == dict.fromkeys(Cause, 0) | {"undeleted": 0, "headers": 2, "of an earlier release": 1}


def test_the_leaders_numbers_are_gone_with_it() -> None:
    assert (value(facts(), metrics.RATE), value(facts(), metrics.IN_FLIGHT)) == (7, 3)
    assert value(facts(), metrics.LEADER_SILENCE) == 0.5
    silent = facts(heard_at=NOW - timedelta(seconds=60))
    assert (value(silent, metrics.RATE), value(silent, metrics.IN_FLIGHT)) == (0, 0)
    assert value(silent, metrics.LEADER_SILENCE) == 60
    set_back = facts(heard_at=NOW + timedelta(seconds=60))
    assert value(set_back, metrics.LEADER_SILENCE) == 0


def test_a_members_own_numbers() -> None:
    measures = Measures(lambda: 8.0)
    first = {sample.metric for sample in of_member(measures)}
    assert metrics.TAKE_OVER not in first
    measures.elected()
    measures.took_over()
    measures.fencings += 2
    measures.publishes(Counter(t=5))
    measures.took(Stage.READ, 7.5)
    measures.waited(2.0, records=5)
    found = {(each.metric, *each.labels.values(), each.part): each.value for each in of_member(measures)}
    assert (
        found.items()
        >= {
            (metrics.LEADING, ""): 1,
            (metrics.PUBLISHED, "t", ""): 5,
            (metrics.LATENCY, "0.5", ""): 2.0,
            (metrics.LATENCY, "0.99", ""): 2.0,
            (metrics.LATENCY, "sum"): 10.0,
            (metrics.LATENCY, "count"): 5,
            (metrics.BATCH, "read", "0.99", ""): 0.5,
            (metrics.BATCH, "read", "sum"): 0.5,
            (metrics.BATCH, "purge", "count"): 0,
            (metrics.TAKE_OVER, ""): 0.0,
            (metrics.ELECTIONS, ""): 1,
            (metrics.FENCINGS, ""): 2,
        }.items()
    )
    assert (metrics.BATCH, "purge", "0.5", "") not in found


def test_each_metric_of_the_reference_is_told_with_its_labels() -> None:
    measures = Measures(float)
    measures.took_over()
    measures.publishes(Counter(t=1))
    measures.without_extents["west"] = 2
    common = {"clusters": CLUSTERS, "positions": (REPORT,)}
    shards = Facts.of([facts(shard=0, **common), facts(shard=1, **common)])
    samples = [*of_outbox(shards, judge(shards, BOUNDS), BOUNDS), *of_member(measures)]
    assert {sample.metric for sample in samples} == {metric for metric in METRICS if metric.name}
    for sample in samples:
        assert tuple(sample.labels)[: len(sample.metric.labels)] == sample.metric.labels
        assert set(sample.labels) - set(sample.metric.labels) <= {"quantile"}


def test_positions_are_those_that_were_told_last() -> None:
    """Old ones are not, but for their age; and where nobody replicates any there are none."""
    assert not any(metric.name.startswith("airflow_outbox_positions") for metric in values(facts()))
    earlier = replace(REPORT, member="b:2", told_at=NOW - timedelta(seconds=9), failures=7)
    found = values(facts(positions=(earlier, REPORT)))
    groups = {sample.labels["positions"]: sample.value for sample in found[metrics.POSITIONS_GROUPS]}
    assert groups == dict.fromkeys(GroupState, 0) | {GroupState.FOLLOWING: 5, GroupState.LEFT_ALONE: 1}
    assert [(sample.labels, sample.value) for sample in found[metrics.POSITIONS_BEHIND]] == [({"cluster": "west"}, 40)]
    assert [found[metric][0].value for metric in (metrics.POSITIONS_AGE, metrics.POSITIONS_FAILURES)] == [2, 3]
    old = replace(REPORT, told_at=NOW - timedelta(seconds=300))
    alone = values(facts(positions=(replace(old, beside_harvest=False),)))
    assert alone[metrics.POSITIONS_AGE][0].value == 300
    assert metrics.POSITIONS_GROUPS not in alone
    assert metrics.POSITIONS_AGE not in values(facts(positions=(replace(old, member="gone:3"),)))


def test_several_clusters_have_their_own_numbers() -> None:
    """A single one has none."""
    assert not any(metric.name.startswith("airflow_outbox_cluster") for metric in values(facts()))
    away = Trouble("a:1", TroubleKind.CLUSTER, "cluster west: away", NOW, NOW)
    found = values(facts(clusters=CLUSTERS, troubles=(away,)))
    by_cluster = {
        metric: {sample.labels["cluster"]: sample.value for sample in found[metric]}
        for metric in (metrics.CLUSTER_USABLE, metrics.CLUSTER_BEHIND, metrics.CLUSTER_COUNTS)
    }
    assert by_cluster == {
        metrics.CLUSTER_USABLE: {"primary": 1, "west": 0},
        metrics.CLUSTER_BEHIND: {"primary": 0, "west": 1},
        metrics.CLUSTER_COUNTS: {"primary": 1, "west": 1},
    }
    owed = replace(CLUSTERS[1], part="owed", owed_since=NOW - timedelta(hours=2))
    found = values(facts(clusters=(CLUSTERS[0], owed)))
    for metric, by_name in (
        (metrics.CLUSTER_COUNTS, {"primary": 1, "west": 0}),
        (metrics.CLUSTER_OWED_AGE, {"primary": 0, "west": 7200}),
    ):
        assert {sample.labels["cluster"]: sample.value for sample in found[metric]} == by_name


def test_several_shards_have_their_own_numbers() -> None:
    """A single one has none."""
    assert not any(metric.name.startswith("airflow_outbox_shard") for metric in values(facts()))
    silent = facts(shard=1, heard_at=NOW - timedelta(seconds=60), backlog=Backlog(3, oldest_age=61.0))
    found = values(Facts.of([facts(shard=0), silent]))
    by_shard = {
        metric: {sample.labels["shard"]: sample.value for sample in found[metric]}
        for metric in (metrics.SHARD_BACKLOG, metrics.SHARD_OLDEST_AGE, metrics.SHARD_SILENCE, metrics.SHARD_RATE)
    }
    assert by_shard == {
        metrics.SHARD_BACKLOG: {"0": 0, "1": 3},
        metrics.SHARD_OLDEST_AGE: {"0": 0, "1": 61.0},
        metrics.SHARD_SILENCE: {"0": 0.5, "1": 60},
        metrics.SHARD_RATE: {"0": 7, "1": 0},
    }
    states = [tuple(sample.labels.values()) for sample in found[metrics.SHARD_VERDICT] if sample.value]
    assert states == [("0", "healthy"), ("1", "no_leader")]
    whole = [
        found[metric][0].value for metric in (metrics.BACKLOG, metrics.OLDEST_AGE, metrics.RATE, metrics.IN_FLIGHT)
    ]
    assert whole == [3, 61.0, 7, 3]
