"""Facts about outboxes that the tests of verdicts share."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.verdict import Backlog, ClusterFacts, Facts, ParkedRefusals, Thresholds, Trouble, TroubleKind

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
BOUNDS = Thresholds(lagging_after=60, stalled_after=30, silence=6)
UNREACHED = "can't reach Kafka at k:9092: Connection refused. Check bootstrap.servers"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def trouble(
    member: str = "a:1", *, since: float = 5, told: float = 1, kind: TroubleKind = TroubleKind.KAFKA
) -> Trouble:
    return Trouble(member, kind, UNREACHED, ago(since), ago(told))


def away(member: str) -> Trouble:
    """A member does not reach a backup."""
    error = "cluster west: can't reach Kafka at w:9092: Connection refused. Check bootstrap.servers"
    return replace(trouble(member, kind=TroubleKind.CLUSTER), error=error)


LED = Facts(now=NOW, member="a:1", heard_at=ago(0.5), took_over_at=ago(3600), published_at=ago(1))
WAITING = replace(LED, backlog=Backlog(7, oldest_age=40.0))
CLUSTERED = replace(
    WAITING, published_at=ago(9), clusters=(ClusterFacts("primary", "primary"), ClusterFacts("west", "backup", 1))
)
OWED = ClusterFacts("west", "owed", 4, ago(90), "an operator has detached it")
PARKED = {Cause.UNKNOWN_TOPIC: ParkedRefusals(3, ago(9), "topic x does not exist")}
ERROR = {"last_error": "disk full. Make room", "last_error_at": ago(0.5)}


def shards(*changed: tuple[int, dict[str, object]]) -> Facts:
    """Four shards that two members lead, with these changes."""
    facts = {number: replace(LED, shard=number, member=f"{'ab'[number % 2]}:1", rate=1.0) for number in range(4)}
    for number, changes in changed:
        facts[number] = replace(facts[number], **changes)  # type: ignore[arg-type]
    return Facts.of(list(facts.values()))
