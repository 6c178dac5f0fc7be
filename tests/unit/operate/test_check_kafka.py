"""What `check` finds about topics: rights for positions, and bounds of sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import AclOperation, ConfigEntry  # type: ignore[attr-defined]

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.operate.check_kafka import _examine
from airflow_outbox.operate.finding import Severity
from airflow_outbox.values.layout import Layout

ALL = frozenset(AclOperation)


def allowing(operations: frozenset[AclOperation]) -> Any:
    return SimpleNamespace(authorized_operations=operations, partitions=[SimpleNamespace(replicas=[1, 2])])


def test_rights_that_positions_lack_are_found() -> None:
    settings = {
        "data_source": "host=h",
        "clusters": {"primary": {"bootstrap.servers": "a"}, "west": {"bootstrap.servers": "b"}},
        "positions": {"enabled": True, "groups": ["app", "orders-*"]},
    }
    config = next(iter(HarvestConfig.validated(settings, source="test").by_cluster().values()))
    names = KafkaNames.of(config, UUID(int=1))
    topics = {topic: allowing(ALL) for topic in names.own_topics(config)}
    topics["orders"] = allowing(ALL - {AclOperation.READ})
    asked: list[str] = []

    def group(name: str) -> Any:
        asked.append(name)
        return allowing(ALL - {AclOperation.READ} if name == "app" else ALL)

    cluster: Any = SimpleNamespace(group=group, topic_settings=lambda _: {})
    found = [each.text for each in _examine(config, names, cluster, topics, {"orders"}, [Layout()], (0,))]
    assert [text.split(". ")[0] for text in found] == [
        "positions: Kafka does not allow READ on group app",
        "positions: Kafka does not allow READ on topic orders",
    ]
    assert "orders-*" not in asked


@pytest.mark.parametrize(
    ("largest", "found"), [(1_000_000, []), (999_999, [Severity.DANGEROUS, Severity.NOTE])], ids=["fits", "too small"]
)
def test_topics_that_take_smaller_records_than_come_are_found(largest: int, found: list[Severity]) -> None:
    config = HarvestConfig.validated({"data_source": "host=h", "kafka": {"bootstrap.servers": "a"}}, source="test")
    names = KafkaNames.of(config, UUID(int=1))
    values = {"min.insync.replicas": "2", "cleanup.policy": "compact", "max.message.bytes": str(largest)}
    settings = {name: ConfigEntry(name, value) for name, value in values.items()}
    cluster: Any = SimpleNamespace(
        group=lambda _: allowing(ALL), topic_settings=lambda topics: dict.fromkeys(topics, settings)
    )
    topics = {topic: allowing(ALL) for topic in (names.ledger_topic, "orders")}
    findings = [*_examine(config, names, cluster, topics, {"orders"}, [Layout()], (0,))]
    assert [finding.severity for finding in findings] == found
    for finding, topic in zip(findings, (names.ledger_topic, "orders"), strict=False):
        assert f"topic {topic}" in finding.text
        assert "max.message.bytes=999999" in finding.text
