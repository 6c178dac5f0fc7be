"""The metrics' present values: of the outbox, as Postgres knows it, and of one member, as it measures itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_outbox.harvest.measures import Measures, Summary
from airflow_outbox.values import metrics
from airflow_outbox.values.judging import fault_of, judge
from airflow_outbox.values.metrics import Metric, Sample
from airflow_outbox.values.positions import GroupState, heard_last
from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.verdict import UNDELETED, Facts, State, Thresholds, Verdict

_NONE: Mapping[str, str] = {}


def of_outbox(facts: Facts | None, verdict: Verdict, thresholds: Thresholds) -> Iterator[Sample]:
    """The outbox's metrics; without facts only the verdict."""
    for state in State:
        yield Sample(metrics.VERDICT, int(verdict.state is state), {"state": state.value})
    if facts is None:
        return
    if (backlog := facts.backlog) is not None:
        yield Sample(metrics.BACKLOG, backlog.records)
        yield Sample(metrics.BACKLOG_IS_EXACT, int(backlog.is_exact))
        if backlog.oldest_age is not None or not backlog.records:
            yield Sample(metrics.OLDEST_AGE, backlog.oldest_age or 0.0)
    counts = dict.fromkeys([*map(str, Cause), UNDELETED], 0) | {
        cause: found.records for cause, found in facts.parked.items()
    }
    for cause, count in counts.items():
        yield Sample(metrics.PARKED, count, {"cause": cause})
    if facts.heard_at is not None:
        yield Sample(metrics.LEADER_SILENCE, max(0.0, facts.seconds_since(facts.heard_at)))
    yield Sample(metrics.RATE, facts.rate_now(thresholds))
    yield Sample(metrics.IN_FLIGHT, sum(each.in_flight for each in facts.each if each.leads(thresholds)))
    for each in facts.shards:
        yield from _of_shard(each, thresholds)
    for cluster in facts.clusters:
        named = {"cluster": cluster.name}
        yield Sample(metrics.CLUSTER_USABLE, int(fault_of(cluster.name, facts) is None), named)
        yield Sample(metrics.CLUSTER_BEHIND, cluster.behind, named)
        yield Sample(metrics.CLUSTER_COUNTS, int(cluster.part != "owed"), named)
        age = 0.0 if cluster.owed_since is None else max(0.0, facts.seconds_since(cluster.owed_since))
        yield Sample(metrics.CLUSTER_OWED_AGE, age, named)
    yield from _of_positions(facts)


def _of_positions(facts: Facts) -> Iterator[Sample]:
    """The last word of a replicator, and its groups while that word is fresh."""
    leaders = {each.member for each in facts.each}
    if (report := heard_last(facts.positions, leaders=leaders, now=facts.now)) is None:
        return
    yield Sample(metrics.POSITIONS_AGE, max(0.0, facts.seconds_since(report.told_at)))
    if not report.is_fresh(facts.now):
        return
    for state in GroupState:
        yield Sample(metrics.POSITIONS_GROUPS, report.groups.get(state, 0), {"positions": state.value})
    for cluster, offsets in report.behind.items():
        yield Sample(metrics.POSITIONS_BEHIND, offsets, {"cluster": cluster})
    yield Sample(metrics.POSITIONS_FAILURES, report.failures)


def _of_shard(facts: Facts, thresholds: Thresholds) -> Iterator[Sample]:
    shard = {"shard": str(facts.shard)}
    verdict = judge(facts, thresholds)
    for state in State:
        yield Sample(metrics.SHARD_VERDICT, int(verdict.state is state), {**shard, "state": state.value})
    if (backlog := facts.backlog) is not None:
        yield Sample(metrics.SHARD_BACKLOG, backlog.records, shard)
        if backlog.oldest_age is not None or not backlog.records:
            yield Sample(metrics.SHARD_OLDEST_AGE, backlog.oldest_age or 0.0, shard)
    if facts.heard_at is not None:
        yield Sample(metrics.SHARD_SILENCE, max(0.0, facts.seconds_since(facts.heard_at)), shard)
    yield Sample(metrics.SHARD_RATE, facts.rate_now(thresholds), shard)


def of_member(measures: Measures) -> Iterator[Sample]:
    """One member's own metrics."""
    yield Sample(metrics.LEADING, int(measures.leads))
    for topic, count in measures.topics.items():
        yield Sample(metrics.PUBLISHED, count, {"topic": topic})
    yield from _summary(metrics.LATENCY, measures.latency, at=measures.now())
    for stage, summary in measures.stages.items():
        yield from _summary(metrics.BATCH, summary, {"stage": stage.value}, at=measures.now())
    if measures.take_over is not None:
        yield Sample(metrics.TAKE_OVER, measures.take_over)
    yield Sample(metrics.ELECTIONS, measures.elections)
    yield Sample(metrics.FENCINGS, measures.fencings)
    for cluster, batches in measures.without_extents.items():
        yield Sample(metrics.WITHOUT_EXTENTS, batches, {"cluster": cluster})


def _summary(metric: Metric, summary: Summary, labels: Mapping[str, str] = _NONE, *, at: float) -> Iterator[Sample]:
    for share, seconds in zip(metrics.QUANTILES, summary.quantiles(*metrics.QUANTILES, at=at), strict=False):
        yield Sample(metric, seconds, {**labels, "quantile": str(share)})
    yield Sample(metric, summary.sum, labels, "sum")
    yield Sample(metric, summary.count, labels, "count")
