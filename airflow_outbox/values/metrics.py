"""The metrics, each declared once: `/metrics`, Airflow's stats and the reference of the documentation all go by this.

Names for Prometheus follow its conventions: base units, `_total` for counters. The names in Airflow's stats follow
OpenTelemetry's: dots, and no unit; Airflow puts its own prefix before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

PREFIX: Final = "airflow_outbox_"
QUANTILES: Final = (0.5, 0.99)


class MetricKind(StrEnum):
    """How a metric's values change: a gauge has any value, a counter only grows, a summary has quantiles."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


class Stage(StrEnum):
    """The steps of a batch. One that is harvested at least once has `read` (it is marked) and `purge`."""

    READ = "read"
    PUBLISH = "publish"
    COMMIT = "commit"
    READABLE = "readable"
    PURGE = "purge"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `labels` come beside `outbox`, which every metric has; a summary has `quantile`, too.

    `stats_name` is its name in Airflow's stats; '' where it is not sent there.
    """

    name: str
    stats_name: str
    kind: MetricKind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name in Airflow's stats without `outbox.`: where it stands in an object of JSON."""
        return self.stats_name.removeprefix("outbox.")


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric. `labels` leave out the outbox. `part` is '' or, of a summary, `sum` or `count`."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    part: str = ""


VERDICT: Final = Metric(
    f"{PREFIX}verdict",
    "outbox.verdict",
    MetricKind.GAUGE,
    "1 or 0",
    "1 for the state that the outbox is in, 0 for all others",
    ("state",),
)
BACKLOG: Final = Metric(
    f"{PREFIX}backlog_records",
    "outbox.backlog",
    MetricKind.GAUGE,
    "records",
    "records that wait to be published, counted up to 100,000; parked ones do not count",
)
BACKLOG_IS_EXACT: Final = Metric(
    f"{PREFIX}backlog_is_exact",
    "outbox.backlog_is_exact",
    MetricKind.GAUGE,
    "1 or 0",
    "0 if more records wait than were counted",
)
OLDEST_AGE: Final = Metric(
    f"{PREFIX}oldest_age_seconds",
    "outbox.oldest_age",
    MetricKind.GAUGE,
    "seconds",
    "how long the oldest unpublished record has waited; 0 if none waits",
)
PARKED: Final = Metric(
    f"{PREFIX}parked_records",
    "outbox.parked",
    MetricKind.GAUGE,
    "records",
    "parked records that can't be published, by cause, and as `undeleted` published ones that can't be deleted; all "
    "causes together are counted up to 1,000, `undeleted` apart from them",
    ("cause",),
)
LEADER_SILENCE: Final = Metric(
    f"{PREFIX}leader_silence_seconds",
    "outbox.leader_silence",
    MetricKind.GAUGE,
    "seconds",
    "how long ago a leader was last heard from, of several shards the most silent one; missing if there has been none",
)
RATE: Final = Metric(
    f"{PREFIX}rate_records_per_second",
    "outbox.rate",
    MetricKind.GAUGE,
    "records per second",
    "how fast the leader, or all shards' leaders, published in the last second; 0 if nobody leads",
)
IN_FLIGHT: Final = Metric(
    f"{PREFIX}in_flight_records",
    "outbox.in_flight",
    MetricKind.GAUGE,
    "records",
    "records that the leader has read and not yet purged; 0 if nobody leads",
)
SHARD_VERDICT: Final = Metric(
    f"{PREFIX}shard_verdict",
    "outbox.shard_verdict",
    MetricKind.GAUGE,
    "1 or 0",
    "of several shards: 1 for the state that the shard is in, 0 for all others",
    ("shard", "state"),
)
SHARD_BACKLOG: Final = Metric(
    f"{PREFIX}shard_backlog_records",
    "outbox.shard_backlog",
    MetricKind.GAUGE,
    "records",
    "of several shards: records that wait for its leader, counted up to its part of 100,000",
    ("shard",),
)
SHARD_OLDEST_AGE: Final = Metric(
    f"{PREFIX}shard_oldest_age_seconds",
    "outbox.shard_oldest_age",
    MetricKind.GAUGE,
    "seconds",
    "of several shards: how long its oldest unpublished record has waited; 0 if none waits",
    ("shard",),
)
SHARD_SILENCE: Final = Metric(
    f"{PREFIX}shard_leader_silence_seconds",
    "outbox.shard_leader_silence",
    MetricKind.GAUGE,
    "seconds",
    "of several shards: how long ago its leader was last heard from; missing if there has been none",
    ("shard",),
)
SHARD_RATE: Final = Metric(
    f"{PREFIX}shard_rate_records_per_second",
    "outbox.shard_rate",
    MetricKind.GAUGE,
    "records per second",
    "of several shards: how fast its leader published in its last second; 0 if nobody leads it",
    ("shard",),
)
CLUSTER_USABLE: Final = Metric(
    f"{PREFIX}cluster_usable",
    "outbox.cluster_usable",
    MetricKind.GAUGE,
    "1 or 0",
    "of several clusters: 0 while everything waits for this one, else 1",
    ("cluster",),
)
CLUSTER_BEHIND: Final = Metric(
    f"{PREFIX}cluster_behind_batches",
    "outbox.cluster_behind",
    MetricKind.GAUGE,
    "batches",
    "of several clusters: how many batches fewer than any other it is known to have",
    ("cluster",),
)
CLUSTER_COUNTS: Final = Metric(
    f"{PREFIX}cluster_counts",
    "outbox.cluster_counts",
    MetricKind.GAUGE,
    "1 or 0",
    "of several clusters: 0 while this one is detached, so that records are published without it, else 1",
    ("cluster",),
)
CLUSTER_OWED_AGE: Final = Metric(
    f"{PREFIX}cluster_owed_age_seconds",
    "outbox.cluster_owed_age",
    MetricKind.GAUGE,
    "seconds",
    "of several clusters: how long ago the oldest batch was published that Postgres keeps for this one; 0 if it keeps "
    "none",
    ("cluster",),
)
POSITIONS_GROUPS: Final = Metric(
    f"{PREFIX}positions_groups",
    "outbox.positions_groups",
    MetricKind.GAUGE,
    "groups",
    "consumer groups whose positions are replicated, by how these are",
    ("positions",),
)
POSITIONS_BEHIND: Final = Metric(
    f"{PREFIX}positions_behind_offsets",
    "outbox.positions_behind",
    MetricKind.GAUGE,
    "offsets",
    "how many offsets a group has read since its position was last committed on this cluster, of the group that is "
    "furthest behind",
    ("cluster",),
)
POSITIONS_AGE: Final = Metric(
    f"{PREFIX}positions_age_seconds",
    "outbox.positions_age",
    MetricKind.GAUGE,
    "seconds",
    "how long ago a replicator of positions last said how they are",
)
POSITIONS_FAILURES: Final = Metric(
    f"{PREFIX}positions_failures_total",
    "outbox.positions_failures",
    MetricKind.COUNTER,
    "failures",
    "how often positions could not be read or committed, since the replicator was started",
)
LEADING: Final = Metric(
    f"{PREFIX}leading",
    "",
    MetricKind.GAUGE,
    "1 or 0",
    "1 if this member leads any shard",
)
PUBLISHED: Final = Metric(
    f"{PREFIX}published_records_total",
    "outbox.published",
    MetricKind.COUNTER,
    "records",
    "records that this member has published and purged, by topic; from the 1,001st topic on they count as `(others)`",
    ("topic",),
)
LATENCY: Final = Metric(
    f"{PREFIX}publish_latency_seconds",
    "outbox.publish_latency",
    MetricKind.SUMMARY,
    "seconds",
    "from the start of the transaction that stashed a record until the record can be read and is purged; one record of "
    "each batch stands for the batch",
)
BATCH: Final = Metric(
    f"{PREFIX}batch_seconds",
    "outbox.batch_time",
    MetricKind.SUMMARY,
    "seconds",
    "how long this member's batches took, by stage",
    ("stage",),
)
TAKE_OVER: Final = Metric(
    f"{PREFIX}take_over_seconds",
    "outbox.take_over",
    MetricKind.GAUGE,
    "seconds",
    "how long this member's last take-over took, from its election, or from the end of its last term, until it began "
    "to harvest; missing before the first one",
)
ELECTIONS: Final = Metric(
    f"{PREFIX}elections_total",
    "outbox.elections",
    MetricKind.COUNTER,
    "elections",
    "how often this member was elected to lead",
)
FENCINGS: Final = Metric(
    f"{PREFIX}fencings_total",
    "outbox.fencings",
    MetricKind.COUNTER,
    "fencings",
    "how often a successor's view ended a term of this member",
)
WITHOUT_EXTENTS: Final = Metric(
    f"{PREFIX}batches_without_extents_total",
    "outbox.batches_without_extents",
    MetricKind.COUNTER,
    "batches",
    "batches that this member has published on a cluster without their extents, though positions are on",
    ("cluster",),
)
RESTARTS: Final = Metric(
    "",
    "outbox.harvest_restarts",
    MetricKind.COUNTER,
    "restarts",
    "how often the triggerer has started a harvesting process again",
)

METRICS: Final = (
    VERDICT,
    BACKLOG,
    BACKLOG_IS_EXACT,
    OLDEST_AGE,
    PARKED,
    LEADER_SILENCE,
    RATE,
    IN_FLIGHT,
    SHARD_VERDICT,
    SHARD_BACKLOG,
    SHARD_OLDEST_AGE,
    SHARD_SILENCE,
    SHARD_RATE,
    CLUSTER_USABLE,
    CLUSTER_BEHIND,
    CLUSTER_COUNTS,
    CLUSTER_OWED_AGE,
    POSITIONS_GROUPS,
    POSITIONS_BEHIND,
    POSITIONS_AGE,
    POSITIONS_FAILURES,
    LEADING,
    PUBLISHED,
    LATENCY,
    BATCH,
    TAKE_OVER,
    ELECTIONS,
    FENCINGS,
    WITHOUT_EXTENTS,
    RESTARTS,
)
"""All metrics, in the order of the reference."""


def nested(samples: Iterable[Sample]) -> dict[str, Any]:
    """Return samples as an object of JSON: values by the metrics' keys, below them by labels.

    Metrics without such a name, sums and counts are left out.
    """
    found: dict[str, Any] = {}
    for sample in samples:
        if sample.part or not sample.metric.stats_name:
            continue
        *path, last = sample.metric.key, *sample.labels.values()
        place = found
        for name in path:
            place = place.setdefault(name, {})
        place[last] = sample.value
    return found


def flattened(values: Mapping[str, Any]) -> Iterator[Sample]:
    """Return the samples of such an object. Metrics that this release does not know are left out."""
    for metric in METRICS:
        if metric.key and metric.key in values:
            names = [*metric.labels, *(["quantile"] if metric.kind is MetricKind.SUMMARY else [])]
            yield from _flattened(metric, names, values[metric.key], {})


def _flattened(metric: Metric, names: Sequence[str], value: Any, labels: Mapping[str, str]) -> Iterator[Sample]:
    if not names:
        yield Sample(metric, float(value), labels)
        return
    for label, below in value.items():
        yield from _flattened(metric, names[1:], below, {**labels, names[0]: label})
