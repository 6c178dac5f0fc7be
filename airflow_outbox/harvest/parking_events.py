"""The events of parking, in every mode of delivery: records were parked, retried, or discarded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_outbox.harvest.ports import Events
from airflow_outbox.harvest.protocol.parking import Diversion
from airflow_outbox.values.records import Lane
from airflow_outbox.values.refusals import Refusal

_MOST_REASONS = 10


def report_parked(events: Events, diversion: Diversion[Any]) -> None:
    """Report records that were moved into the parked table, if there are any."""
    refused, waiting = diversion.refused, diversion.waiting
    if refused or waiting:
        events(
            "parked",
            topics=_named(diversion.topics),
            refused=len(refused),
            waiting=len(waiting),
            reasons=_reasons(refused),
        )


def report_retried(events: Events, *, topics: Counter[str], refused: Mapping[int, Refusal]) -> None:
    """Report parked records that were published, and others that were refused again."""
    events("retried", topics=_named(topics), refused=len(refused), reasons=_reasons(refused))


def report_discarded(events: Events, lanes: Iterable[Lane]) -> None:
    """Report records that operators had discarded, if there are any. `lanes` has one for each."""
    topics = Counter(topic for topic, _ in lanes)
    if topics:
        events("discarded", topics=_named(topics))


def _named(topics: Mapping[str, int]) -> dict[str, int]:
    """Return counts by topic; a name that is no text is written as in Python."""
    return {topic if isinstance(topic, str) else repr(topic): count for topic, count in topics.items()}


def _reasons(refused: Mapping[int, Refusal]) -> list[dict[str, object]]:
    """Why records were refused, the most frequent reasons first."""
    counted = Counter(refused.values()).most_common(_MOST_REASONS)
    return [{"cause": why.cause.value, "reason": why.reason, "records": count} for why, count in counted]
