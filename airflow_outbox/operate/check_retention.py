"""Find extents that are not kept as long as the records that they are about."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.operate.finding import Finding, Severity

_FOR_EVER = math.inf


def examine_retention(cluster: Cluster, names: KafkaNames, topics: Collection[str]) -> Iterator[Finding]:
    """Compare how long one cluster keeps the extents with how long it keeps these topics, as far as it tells. Raises
    KafkaError.
    """
    settings = cluster.topic_settings({*topics, names.extents_topic})
    kept = {topic: _kept(found) for topic, found in settings.items() if not isinstance(found, BrokerError)}
    if (extents := kept.pop(names.extents_topic, None)) is None:
        return  # the list of topics, or of permissions, has said why
    if (size := settings[names.extents_topic]["retention.bytes"].value) != "-1":
        yield Finding(
            Severity.DANGEROUS,
            f"topic {names.extents_topic}, the extents, is cut to {size} bytes: groups that are further behind read "
            "from the start of their topics after a move. Set its retention.bytes to -1",
        )
    topic = max(kept, key=lambda topic: kept[topic], default=None)
    if topic is not None and kept[topic] > extents:
        milliseconds = "-1" if kept[topic] == _FOR_EVER else f"{kept[topic]:.0f}"
        yield Finding(
            Severity.DANGEROUS,
            f"topic {topic} keeps records {_in_words(kept[topic])}, but topic {names.extents_topic}, the extents, only "
            f"{_in_words(extents)}: groups that are further behind read from the start after a move. Set its "
            f"retention.ms to {milliseconds}",
        )


def _kept(settings: Mapping[str, Any]) -> float:
    """Return for how many milliseconds a topic keeps records."""
    milliseconds = int(settings["retention.ms"].value)
    is_deleted = "delete" in settings["cleanup.policy"].value.split(",")
    return milliseconds if is_deleted and milliseconds >= 0 else _FOR_EVER


def _in_words(milliseconds: float) -> str:
    return "for ever" if milliseconds == _FOR_EVER else f"for {timedelta(milliseconds=milliseconds)}"
