"""How an outbox was doing at a time of the last day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_outbox.values.verdict import Backlog, State


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """How an outbox, or a shard, was doing in the seconds from `noted_at` on.

    - `backlog`: None if it could not be counted in time
    - `rate`: records published a second
    - `latency_p50`, `latency_p99`: seconds from stash to publish (None: nothing was published)
    """

    noted_at: datetime
    state: State
    backlog: Backlog | None
    rate: float
    latency_p50: float | None
    latency_p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardNote:
    """How a shard is doing now, as in `HistoryPoint`, and which `member` was seen to lead it (None: nobody)."""

    shard: int = 0
    member: str | None
    state: State
    backlog: Backlog | None
    rate: float
    latency_p50: float | None = None
    latency_p99: float | None = None
