"""How many partitions the outbox's own topics get, and when they are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka import names as names_module
from airflow_outbox.harvest.kafka.names import KafkaNames, make_extents_topic, make_leader_topic, widen_topics
from airflow_outbox.positions.index import TopicIndex


@pytest.fixture
def partitions(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A cluster's topics, and their number of partitions."""
    found: dict[str, int] = {}

    class Cluster:
        def __init__(self, _: object) -> None: ...

        def topics(self, names: list[str]) -> dict[str, Any]:
            missing = BrokerError(BrokerError.UNKNOWN_TOPIC_OR_PART)
            return {
                name: SimpleNamespace(partitions=range(found[name])) if name in found else missing for name in names
            }

        def make_topic(self, topic: Any) -> None:
            found[topic.topic] = topic.num_partitions

        def add_partitions(self, name: str, number: int) -> None:
            found[name] = number

    monkeypatch.setattr(names_module, "Cluster", Cluster)
    return found


def config(*, positions: bool) -> HarvestConfig:
    settings = {"data_source": "host=h", "kafka": {"bootstrap.servers": "k"}, "positions": {"enabled": positions}}
    return HarvestConfig.validated(settings, source="config")


def names(config: HarvestConfig) -> KafkaNames:
    return KafkaNames.of(config, UUID(int=1))


def test_the_extents_get_as_many_partitions_as_the_ledger_has(partitions: dict[str, int]) -> None:
    own = config(positions=True)
    topics = names(own)
    partitions[topics.ledger_topic] = 4  # it was resharded
    assert make_extents_topic(own, topics)
    assert partitions[topics.extents_topic] == 4
    assert not make_extents_topic(own, topics)
    partitions[topics.ledger_topic] = 6
    assert make_extents_topic(own, topics)
    assert partitions[topics.extents_topic] == 6


def test_the_extents_are_widened_also_while_positions_are_off(partitions: dict[str, int]) -> None:
    own = config(positions=False)
    topics = names(own)
    partitions |= {topics.leader_topic: 1, topics.ledger_topic: 1}
    assert widen_topics(own, topics, shards=3) == [topics.leader_topic, topics.ledger_topic]
    partitions[topics.extents_topic] = 1
    assert widen_topics(own, topics, shards=3) == [topics.extents_topic]


def test_a_topic_that_was_made_is_known(partitions: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker hears of it some time after the answer that it was made."""
    own = config(positions=False)
    topic = names(own).leader_topic
    made: list[tuple[str, int]] = []
    asked: list[Any] = []

    class Late(names_module.Cluster):
        def topics(self, names: Any) -> dict[str, Any]:
            asked.append(names)
            if made and len(asked) > 3:
                partitions.update(made)
            return super().topics(names)

        def make_topic(self, topic: Any) -> None:
            made.append((topic.topic, 1))

    monkeypatch.setattr(names_module, "Cluster", Late)
    monkeypatch.setattr(names_module, "_MAKING_POLL", 0.0)
    assert make_leader_topic(own, names(own))
    assert topic in partitions
    assert not make_leader_topic(own, names(own))


def test_a_shard_that_the_extents_have_no_partition_for_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = config(positions=True)
    index = TopicIndex(own, names(own))
    monkeypatch.setattr(index, "_reader", SimpleNamespace(partitions=lambda: 1, ledger_partitions=lambda: 2))
    with pytest.raises(KafkaError, match="has 1 partitions, fewer than the ledger, which has 2"):
        index.refresh()
