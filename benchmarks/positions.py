"""What positions cost, and how soon an offset is found, however long the history.

*Size*: real transactions write the extents of batches, one record a batch as the harvester does, and one a batch and
partition to compare. The extents topic's log tells their size on disk, with the ends of the transactions.

*Time*: the extents of many records are written at once, without transactions. Then a new index looks for offsets and
batches all over them.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any
from uuid import UUID, uuid4

from confluent_kafka import Producer

from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.harvest.protocol.extents import ExtentsState
from airflow_outbox.harvest.protocol.ledger import Entry, Extent
from airflow_outbox.positions.index import TopicIndex
from airflow_outbox.values.extents import TopicPartitionId
from airflow_outbox.values.records import Snapshot

ROOT = Path(__file__).resolve().parents[1]
TOPIC, TOPIC_ID = "orders", "MkhXBaBmTmaqbnLlPGLLMA"
OUTBOX = UUID(int=1)
VIEW = uuid4()
BATCHES_FOR_SIZE = 1_000


def entries(batches: int, *, records: int, partitions: int) -> Iterator[Entry]:
    """Batches of so many records, spread over the partitions evenly."""
    ends = [0] * partitions
    for number in range(1, batches + 1):
        extents = []
        for at in range(min(records, partitions)):
            partition = (number + at) % partitions
            count = records // partitions + (at < records % partitions)
            extents.append(Extent(TOPIC, partition, ends[partition], ends[partition] + count - 1, count))
            ends[partition] += count + 1  # and the end of the transaction
        yield Entry(number, VIEW, 1, Snapshot(1, 1), (), tuple(extents), outbox_id=OUTBOX, shard=0)


def log_bytes(folder: Path, topic: str) -> int:
    return sum(log.stat().st_size for log in folder.rglob(f"{topic}-0/*.log"))


def size(folder: Path, config: HarvestConfig, *, records: int, partitions: int, apart: bool) -> dict[str, Any]:
    """Return how large the extents of a million records are, in batches of so many."""
    names = KafkaNames.of(config, uuid4())
    make_internal_topics(config, names)
    producer = Producer({**config.kafka, "transactional.id": str(uuid4()), "linger.ms": 0})
    producer.init_transactions()
    state, offset = ExtentsState(), 0
    for entry in entries(BATCHES_FOR_SIZE, records=records, partitions=partitions):
        producer.begin_transaction()
        parts = [replace(entry, extents=(extent,)) for extent in entry.extents] if apart else [entry]
        for part in parts:
            for key, value in state.records(part, {TOPIC: TOPIC_ID}):
                producer.produce(names.extents_topic, value, key, partition=0)
                state.written(offset)
                offset += 1
        producer.commit_transaction()
        offset += 1
    each = log_bytes(folder, names.extents_topic) / BATCHES_FOR_SIZE
    return {
        "benchmark": "positions",
        "what": "size",
        "records_a_batch": records,
        "partitions": partitions,
        "layout": "one record a batch and partition" if apart else "one record a batch",
        "bytes_a_batch": round(each),
        "megabytes_a_million_records": round(each * 1_000_000 / records / 1e6, 2),
    }


def search(config: HarvestConfig, *, total: int, records: int, partitions: int, searches: int) -> dict[str, Any]:
    """Return how long searches take in the extents of so many records."""
    names = KafkaNames.of(config, uuid4())
    make_internal_topics(config, names)
    producer = Producer({**config.kafka, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    state, batches = ExtentsState(), total // records
    ends = [0] * partitions
    for offset, entry in enumerate(entries(batches, records=records, partitions=partitions)):
        for extent in entry.extents:
            ends[extent.partition] = extent.last + 1
        for key, value in state.records(entry, {TOPIC: TOPIC_ID}):
            producer.produce(names.extents_topic, value, key, partition=0)
            state.written(offset)
        if offset % 10_000 == 0:
            producer.flush()
    producer.flush()
    chosen = random.Random(1)
    began = time.monotonic()
    index = TopicIndex(config, names, OUTBOX)
    index.refresh()
    ready = time.monotonic() - began
    times: list[float] = []
    for _ in range(searches):
        partition = chosen.randrange(partitions)
        where = TopicPartitionId(TOPIC, TOPIC_ID, partition)
        began = time.monotonic()
        found = index.at_offset(0, where, chosen.randrange(ends[partition])).upto
        assert found is not None or ends[partition] == 0
        times.append(time.monotonic() - began)
    read = index.blocks_read
    began = time.monotonic()
    for _ in range(1000):
        index.at_offset(0, TopicPartitionId(TOPIC, TOPIC_ID, 0), ends[0] - 1)
    at_end = (time.monotonic() - began) / 1000
    index.close()
    return {
        "benchmark": "positions",
        "what": "search",
        "records": total,
        "records_a_batch": records,
        "partitions": partitions,
        "ready_ms": round(ready * 1000, 1),
        "first_ms": round(times[0] * 1000, 1),
        "p50_ms": round(quantiles(times, n=100)[49] * 1000, 1),
        "p99_ms": round(quantiles(times, n=100)[98] * 1000, 1),
        "blocks_a_search": round(read / searches, 1),
        "at_the_end_us": round(at_end * 1e6),
        "extents_in_memory": index.extents_in_memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench positions", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000, help="to search among (default: %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[10, 100, 1_000, 20_000], help="records a batch")
    parser.add_argument("--no-sizes", dest="sizes", action="store_false", help="measure searches only")
    parser.add_argument("--partitions", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--searches", type=int, default=300, help="(default: %(default)s)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="airflow-outbox-bench-") as folder:
        Path(folder).chmod(0o755)
        classpath = kafka_jars(ROOT / ".dev" / "jars")
        with EmbeddedKafka(Path(folder) / "kafka", classpath=classpath) as kafka:
            settings = {
                "data_source": "",
                "kafka": {"bootstrap.servers": kafka.bootstrap},
                "positions": {"enabled": True},
            }
            config = HarvestConfig.validated(settings, source="benchmark")
            for records in chosen.batches if chosen.sizes else ():
                for apart in (False, True):
                    found = size(Path(folder), config, records=records, partitions=chosen.partitions, apart=apart)
                    print(json.dumps(found), flush=True)
            for records in chosen.batches:
                found = search(
                    config,
                    total=chosen.records,
                    records=records,
                    partitions=chosen.partitions,
                    searches=chosen.searches,
                )
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
