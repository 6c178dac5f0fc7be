"""What a term reads of the extents topic before it goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException
from support.extents import ExtentsInMemory, entry_of

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka import extents_reader
from airflow_outbox.harvest.kafka.extents_reader import ExtentsReader
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.page_reader import PageReader, PartitionOffsets
from airflow_outbox.harvest.protocol import extents
from airflow_outbox.harvest.protocol.ledger import Extent

NO_CLUSTER: Any = None
CONFIG = HarvestConfig.validated({"data_source": "host=h", "kafka": {"bootstrap.servers": "k"}}, source="config")
FEW = 3


@pytest.mark.parametrize("interval", [5, 12, 1000])
@pytest.mark.parametrize("batches", [0, 1, 6, 40])
@pytest.mark.parametrize("start", [0, 7])
def test_it_reads_from_the_last_record_that_tells_of_all_before_it(
    monkeypatch: pytest.MonkeyPatch, interval: int, batches: int, start: int
) -> None:
    monkeypatch.setattr(extents, "LATEST_INTERVAL", interval)
    monkeypatch.setattr(extents_reader, "_SPAN", FEW)
    monkeypatch.setattr(extents_reader, "_LONGEST_SPAN", 2 * FEW)
    topic = ExtentsInMemory()
    for number in range(1, batches + 1):
        topic.write(entry_of(number, [Extent("orders", 0, number, number, 1)]), {"orders": "o1"})
    topic.start = min(start, topic.end)
    reads: list[int] = []

    def read(shard: int, first: int, upto: int) -> list[Any]:
        reads.append(upto - first)
        return topic.read(shard, first, upto)

    reader = ExtentsReader(CONFIG, KafkaNames.of(CONFIG, UUID(int=1)), cluster=NO_CLUSTER)
    monkeypatch.setattr(reader, "read", read)
    found = [*reader.last(0, topic.reaches)]
    everything = topic.read(0, 0, topic.end)
    tells = [place for place, record in enumerate(everything) if record.latest is not None and record.offset >= start]
    kept = [record for record in everything if record.offset >= start]
    assert found == (everything[tells[-1] :] if tells else kept)
    assert max(reads, default=0) <= 2 * FEW


class OneMessage:
    """A consumer that finds one message wherever it is told to read. It `asks` for topics first."""

    def __init__(self) -> None:
        self.asks: list[str] = []
        self.refuses = False

    def list_topics(self, topic: str, timeout: float) -> None:
        if self.refuses:
            raise KafkaException(BrokerError(BrokerError._TRANSPORT))
        self.asks.append(topic)

    def assign(self, places: list[Any]) -> None:
        assert places[0].topic in self.asks, "the consumer would find it a second later"
        self.offset = places[0].offset

    def poll(self, timeout: float) -> Any:
        return SimpleNamespace(error=lambda: None, offset=lambda: self.offset)

    def unassign(self) -> None: ...


def test_each_topic_is_asked_for_once_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, reader = OneMessage(), PageReader(CONFIG, cluster=NO_CLUSTER)
    monkeypatch.setattr(reader, "_new_consumer", lambda: consumer)
    consumer.refuses = True
    with pytest.raises(KafkaError):
        reader.read("extents", 0, 7, 8)
    consumer.refuses = False
    for topic in ("extents", "ledger", "extents"):
        assert [offset for offset, _ in reader.read(topic, 0, 7, 8)] == [7]
    assert consumer.asks == ["extents", "ledger"]


def test_the_ledgers_head_is_read_again_when_it_reaches_further_or_was_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = ExtentsReader(CONFIG, KafkaNames.of(CONFIG, UUID(int=1)), cluster=NO_CLUSTER)
    reaches = PartitionOffsets(0, 5, 5)
    read: list[int] = []

    def head(shard: int, reaches: PartitionOffsets) -> None:
        read.append(reaches.stable)

    monkeypatch.setattr(reader, "_head", head)
    monkeypatch.setattr(reader._pages, "reaches", lambda *_: {0: reaches})
    for _ in range(2):
        assert reader.heads([0]) == {}
    reaches = PartitionOffsets(0, 7, 7)
    reader.heads([0])
    reader._pages.topic_ids[reader._ledger_topic] = "another"
    reader.heads([0])
    reader.heads([0])
    assert read == [5, 7, 7]
