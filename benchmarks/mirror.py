"""What groups read again, or miss, when they move to another cluster: with positions, and with MirrorMaker 2.

The same stream is stashed for each of the two. With positions, the outbox is published to both clusters, and the
replicator commits the groups' positions. With MirrorMaker 2, it is published to one, and MirrorMaker copies records and
offsets to the other. Groups read on the first cluster and commit five times a second. Each stops at a moment of its
own, and goes on at the second cluster: some at once, some when their position there changes no more. Others read all,
are idle, and then move. One line of JSON for each kind of move.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable
from benchmarks.groups import COMMAND
from benchmarks.peers import mirror_maker
from benchmarks.peers.processes import Child
from benchmarks.peers.servers import JARS

TOPIC = "orders"
PARTITIONS = 4
KEYS = 100
GROUPS = "moving-"
COMMIT_INTERVAL = 0.2
SETTLED_AFTER = 15.0
LONGEST = 120.0
KINDS = ("at once", "when settled", "idle at the end")


@dataclass(slots=True)
class Move:
    """A group's move: of which kind, what it read, and how long after it stopped its position changed last (None: it
    moved at once).
    """

    group: str
    kind: str
    stops_after: float
    read: list[int] = field(default_factory=list)
    lag: float | None = None

    def missed(self, total: int) -> int:
        return total - len(set(self.read))

    def again(self) -> int:
        return sum(count - 1 for count in Counter(self.read).values())


@dataclass(frozen=True, slots=True)
class Clusters:
    """Two clusters, and how the stream's outbox is configured."""

    folder: Path
    database: str
    east: str
    west: str
    settings: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench mirror", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the stream lasts (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=500, help="records a second (default: %(default)s)")
    parser.add_argument("--groups", type=int, default=8, help="of each kind of move (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--contenders", nargs="+", default=["positions", "mirror_maker"])
    given = parser.parse_args()
    for contender in given.contenders:
        for line in turn(contender, given):
            print(json.dumps(line), flush=True)


def turn(contender: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Let groups move with one contender, and yield a result for each kind of move."""
    draw = random.Random(given.seed)
    moves = [
        Move(
            f"{GROUPS}{kind.replace(' ', '-')}-{number}",
            kind,
            given.seconds if kind == KINDS[2] else draw.uniform(0.3, 0.8) * given.seconds,
        )
        for kind in KINDS
        for number in range(given.groups)
    ]
    total = int(given.seconds * given.rate)
    with (
        clusters(replicated=contender == "positions") as own,
        contender_of(contender, own),
        ThreadPoolExecutor(len(moves)) as pool,
    ):
        begun = time.monotonic()
        writer = threading.Thread(target=write, args=(own, total, given.rate))
        writer.start()
        done = [pool.submit(carry_out, move, own, begun, total) for move in moves]
        for each in done:
            each.result()
        writer.join()
    for kind in KINDS:
        found = [move for move in moves if move.kind == kind]
        again = [move.again() for move in found]
        lags = sorted(move.lag for move in found if move.lag is not None)
        yield {
            "benchmark": "mirror",
            "contender": contender,
            "moves": kind,
            "groups": len(found),
            "records": total,
            "missed": sum(move.missed(total) for move in found),
            "again_mean": round(statistics.mean(again), 1),
            "again_most": max(again),
            "lag_p50": round(statistics.median(lags), 2) if lags else None,
            "lag_most": round(lags[-1], 2) if lags else None,
            "load": os.getloadavg()[0],
        }


@contextmanager
def clusters(*, replicated: bool) -> Iterator[Clusters]:
    """Servers, and an outbox that is published to both clusters (`replicated`), or to the first."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-outbox-bench-")))
        folder.chmod(0o755)
        postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres", fsync=False))
        jars = kafka_jars(JARS)
        east, west = (stack.enter_context(EmbeddedKafka(folder / name, classpath=jars)) for name in ("east", "west"))
        settings: dict[str, Any] = {"data_source": postgres.dsn(), "kafka": {"bootstrap.servers": east.bootstrap}}
        if replicated:
            settings["clusters"] = {
                "primary": settings.pop("kafka"),
                "west": {"bootstrap.servers": west.bootstrap},
            }
            settings["positions"] = {"enabled": True, "groups": [f"{GROUPS}*"]}
        config = HarvestConfig.validated(settings, source="bench")
        with psycopg.connect(config.data_source, autocommit=True) as connection:
            init_outbox(connection, config.name)
            outbox_id = OutboxTable(connection, config.name).identity().outbox_id
            add_clusters(connection, config.name, config.clusters)
        make_internal_topics(config, KafkaNames.of(config, outbox_id))
        for server in (east, west):
            admin = AdminClient({"bootstrap.servers": server.bootstrap})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        yield Clusters(folder, config.data_source, east.bootstrap, west.bootstrap, settings)


@contextmanager
def contender_of(contender: str, own: Clusters) -> Iterator[None]:
    """The harvest, and what makes groups' positions follow."""
    file = own.folder / "outbox.yaml"
    file.write_text(json.dumps(own.settings))
    children = [Child([*COMMAND, "harvest", "-f", str(file)], log=own.folder / "harvest.log")]
    try:
        children[0].wait_for('"took_over"', within=LONGEST)
        if contender == "positions":
            children[0].wait_for('"positions_started"', within=LONGEST)
        else:
            children.append(
                mirror_maker.started(own.folder, source=own.east, target=own.west, topic=TOPIC, groups=f"{GROUPS}.*")
            )
        yield
    finally:
        for child in children:
            child.end()


def write(own: Clusters, total: int, rate: int) -> None:
    """Stash records at a steady rate, ten times a second."""
    begun = time.monotonic()
    with psycopg.connect(own.database) as connection:
        done = 0
        while done < total:
            upto = min(total, int((time.monotonic() - begun) * rate))
            stash(connection, [OutboxRecord(TOPIC, f"k{n % KEYS}", str(n)) for n in range(done, upto)])
            connection.commit()
            done = max(done, upto)
            time.sleep(0.1)


def carry_out(move: Move, own: Clusters, begun: float, total: int) -> None:
    """Read on the first cluster until the group stops, move it, and read on until all was read, or nothing comes."""
    is_idle = move.kind == KINDS[2]
    read(
        own.east,
        move,
        until=lambda: (
            len(move.read) >= total if is_idle else time.monotonic() - begun >= move.stops_after and bool(move.read)
        ),
    )
    if move.kind != KINDS[0]:
        move.lag = settled(own.west, move.group)
    quiet_since = [time.monotonic(), len(move.read)]

    def is_over() -> bool:
        now, known = time.monotonic(), len(move.read)
        if known != quiet_since[1]:
            quiet_since[:] = [now, known]
        return now - begun > move.stops_after and now - quiet_since[0] > SETTLED_AFTER

    read(own.west, move, until=is_over)


def read(bootstrap: str, move: Move, *, until: Any) -> None:
    """Read as a member of the group, and commit, until it is to stop."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": move.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([TOPIC])
    committed_at, is_due = time.monotonic(), False
    deadline = time.monotonic() + 10 * LONGEST
    while not until() and time.monotonic() < deadline:
        for message in consumer.consume(100, timeout=0.1):
            if message.error() is None:
                move.read.append(int(message.value() or b""))
                is_due = True
        if is_due and time.monotonic() > committed_at + COMMIT_INTERVAL:
            commit(consumer)
            committed_at, is_due = time.monotonic(), False
    if is_due:
        commit(consumer)
    consumer.close()


def commit(consumer: Consumer) -> None:
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        raise SystemExit(f"a group can't commit: {error}") from error


def settled(bootstrap: str, group: str) -> float:
    """Wait until the group's position on a cluster changes no more. Return how long after the call it last did."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    begun = changed_at = time.monotonic()
    known: Sequence[int] = ()
    while time.monotonic() < changed_at + SETTLED_AFTER:
        places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        found = [place.offset for place in consumer.committed(places, timeout=LONGEST)]
        if found != known:
            known, changed_at = found, time.monotonic()
        time.sleep(0.05)
    consumer.close()
    return changed_at - begun


if __name__ == "__main__":
    main()
