"""How soon, and at what cost, consumer groups' positions follow to another cluster.

Each group commits an offset in each of its partitions every second, as its consumers would. One replicator, a process
of its own, commits them on a second cluster. The lag is the time from a commit until it, or a later one, is committed
there. Both times are the brokers' own: they are in Kafka's topic of offsets, which is read in the end. What was
committed in the first seconds counts apart: until then, the replicator has to find the groups and read extents. One
line of JSON for each number of groups.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.positions.groups import ConsumerGroups
from airflow_outbox.positions.marks import Mark
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable
from benchmarks.peers.processes import Child

COMMAND = (str(Path(sys.executable).with_name("airflow-outbox")),)
ROOT = Path(__file__).resolve().parents[1]
TOPIC = "orders"
PARTITIONS = 12
RECORDS = 600
SETTLING = 5.0
LONGEST = 60.0
OFFSETS, OFFSETS_VERSION = "__consumer_offsets", 4


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench groups", description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[50, 500, 2000])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the groups commit")
    given = parser.parse_args()
    for groups in given.groups:
        with clusters(groups) as (config, file):
            print(json.dumps(measured(config, file, groups, given.seconds)), flush=True)


@contextmanager
def clusters(groups: int) -> Iterator[tuple[HarvestConfig, Path]]:
    """An outbox whose records are on two clusters."""
    jars = kafka_jars(ROOT / ".dev" / "jars")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-outbox-bench-")))
        folder.chmod(0o755)
        postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres", fsync=False))
        servers = [stack.enter_context(EmbeddedKafka(folder / name, classpath=jars)) for name in ("east", "west")]
        settings = {
            "data_source": postgres.dsn(),
            "clusters": {
                name: {"bootstrap.servers": server.bootstrap}
                for name, server in zip(("primary", "west"), servers, strict=True)
            },
            "positions": {"enabled": True, "groups": [f"g{groups}-*"]},
            "limits": {"batch_records": 200},
        }
        config = HarvestConfig.validated(settings, source="bench")
        with psycopg.connect(config.data_source, autocommit=True) as connection:
            init_outbox(connection, config.name)
            identity = OutboxTable(connection, config.name).identity()
            add_clusters(connection, config.name, config.clusters)
        make_internal_topics(config, KafkaNames.of(config, identity.outbox_id))
        for server in servers:
            admin = AdminClient({"bootstrap.servers": server.bootstrap})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        with psycopg.connect(config.data_source) as connection:
            stash(connection, [OutboxRecord(TOPIC, f"k{n}", str(n)) for n in range(RECORDS)])
        file = folder / "outbox.yaml"
        file.write_text(json.dumps(settings))
        harvest = [*COMMAND, "harvest", "-f", str(file), "--until", "drained"]
        subprocess.run(harvest, check=True, stdout=subprocess.DEVNULL)
        for own in config.by_cluster().values():
            _make_coordinators(own.kafka)
        yield config, file


def _make_coordinators(kafka: Mapping[str, Any]) -> None:
    """Let Kafka make its own topic of offsets, and load it."""
    groups = ConsumerGroups(kafka)
    marks = {f"unused-{number}": {(TOPIC, 0): Mark("primary", 0, 0, 1)} for number in range(50)}
    while set(groups.commit(marks).values()) != {None}:
        time.sleep(0.2)


def measured(config: HarvestConfig, file: Path, groups: int, seconds: float) -> dict[str, Any]:
    """Let groups commit for so long, and return how their positions followed."""
    names = [f"g{groups}-{n}" for n in range(groups)]
    reach = config.by_cluster()
    child = Child([*COMMAND, "positions", "run", "-f", file], log=file.with_suffix(".log"))
    try:
        commits: dict[int, dict[str, float]] = {}
        committing = threading.Thread(target=_commit, args=(reach["primary"].kafka, names, seconds, commits))
        started = child.wait_for('"positions_started"', within=LONGEST)[1]
        pid = int(json.loads(started)["pid"])
        committing.start()
        time.sleep(SETTLING)
        used, settled_at = _cpu_seconds(pid), time.monotonic()
        committing.join()
        cores = (_cpu_seconds(pid) - used) / (time.monotonic() - settled_at)
        _wait_for_the_last(reach["west"].kafka, names, max(commits))
    finally:
        child.end()
    first, later = _lags(reach, names, commits)
    return {
        "benchmark": "groups",
        "groups": groups,
        "partitions": PARTITIONS,
        "commits": sum(len(each) for each in commits.values()),
        **_summary("first", first),
        **_summary("lag", later),
        "cores": round(cores, 3),
        "load": os.getloadavg()[0],
    }


def _wait_for_the_last(kafka: dict[str, Any], names: list[str], tick: int) -> None:
    west, deadline = ConsumerGroups(kafka), time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        found = west.committed(west.members_by_group().keys() & set(names))
        marks = [each.get((TOPIC, 0)) for each in found.values() if isinstance(each, dict)]
        if sum(each is not None and each.mark is not None and each.mark.source_offset >= tick for each in marks) == len(
            names
        ):
            return
        time.sleep(1.0)


def _lags(
    reach: Mapping[str, HarvestConfig], names: list[str], commits: dict[int, dict[str, float]]
) -> tuple[list[float], list[float]]:
    """Return the lags of the first seconds' commits and of later ones."""
    begun = min(min(each.values()) for each in commits.values())
    at_home = {(group, offset): at for group, offset, _, at in committed_offsets(reach["primary"].kafka)}
    arrived: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    for group, offset, metadata, at in committed_offsets(reach["west"].kafka):
        mark = Mark.parse(metadata, offset)
        if mark is not None and group in arrived:
            arrived[group].append((mark.source_offset, at))
    first: list[float] = []
    later: list[float] = []
    for tick, each in commits.items():
        for group in each:
            at = at_home[group, tick]
            there = min((when for offset, when in arrived[group] if offset >= tick), default=at + LONGEST)
            (first if at < begun + SETTLING else later).append(there - at)
    return first, later


def committed_offsets(kafka: Mapping[str, Any]) -> Iterator[tuple[str, int, str, float]]:
    """Read from Kafka's own topic what was committed in the first partition: group, offset, metadata and when."""
    settings = {**kafka, "group.id": "unused", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    with closing(Consumer(settings)) as consumer:
        partitions = consumer.list_topics(OFFSETS, timeout=LONGEST).topics[OFFSETS].partitions
        consumer.assign([TopicPartition(OFFSETS, n, 0) for n in partitions])
        left = len(partitions)
        while left:
            message = consumer.poll(LONGEST)
            assert message is not None, f"{OFFSETS} can't be read"
            if message.error() is not None:
                left -= 1
            elif (found := _committed_offset(message.key() or b"", message.value())) is not None:
                yield found


def _committed_offset(key: bytes, value: bytes | None) -> tuple[str, int, str, float] | None:
    """Parse a record of Kafka's topic of offsets; None for others than offsets of the first partition of the topic."""
    if value is None or struct.unpack_from(">h", key)[0] not in (0, 1):
        return None
    group, place = _string(key, 2)
    topic, place = _string(key, place)
    version, offset, _ = struct.unpack_from(">hqi", value)
    if topic != TOPIC or struct.unpack_from(">i", key, place)[0] != 0:
        return None
    assert version == OFFSETS_VERSION, f"{OFFSETS} has records of version {version}"
    length, place = value[14] - 1, 15
    if length >= 127:  # of two bytes
        length, place = (value[14] & 127) + (value[15] << 7) - 1, 16
    metadata = value[place : place + length].decode()
    return group, offset, metadata, struct.unpack_from(">q", value, place + length)[0] / 1000


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + struct.unpack_from(">h", data, at)[0]
    return data[at + 2 : end].decode(), end


def _summary(name: str, lags: list[float]) -> dict[str, float]:
    ordered = sorted(lags)
    return {
        f"{name}_p50": round(statistics.median(ordered), 3),
        f"{name}_p99": round(ordered[int(len(ordered) * 0.99)], 3),
        f"{name}_max": round(ordered[-1], 3),
    }


def _cpu_seconds(pid: int) -> float:
    """How long a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _commit(kafka: dict[str, Any], groups: list[str], seconds: float, commits: dict[int, dict[str, float]]) -> None:
    admin = AdminClient(kafka)
    begun = time.monotonic()
    tick = 1
    while time.monotonic() < begun + seconds:
        due = time.monotonic() + 1.0
        futures = {}
        for group in groups:
            offsets = [TopicPartition(TOPIC, n, tick) for n in range(PARTITIONS)]
            futures[group] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)])[group]
        done = {}
        for group, future in futures.items():
            future.result()
            done[group] = time.time()
        commits[tick] = done
        tick += 1
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
