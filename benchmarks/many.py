"""Many outboxes in one process: what they take while all rest, and how soon the busy ones' records come.

The outboxes are in schemas of one database. A writer for each busy one commits a record at a time, at a rate. A
consumer that reads committed notes when it sees each record. The delay of a record is from the moment at which its
writer knew that the transaction was committed. Before, one outbox alone publishes the same stream. Figures with
disturbances, such as a leadership that was lost for lack of heartbeats, are those of a busy machine.

Lines of JSON: one outbox alone; all at rest; some of them busy; the targets.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.many.names import make_list_topics
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable
from benchmarks.peers.processes import Child

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (str(Path(sys.executable).with_name("airflow-outbox")),)
TOPIC = "orders"
PARTITIONS = 4
LONGEST = 120.0
SETTLING = 10.0
MOST_MB, MOST_CONNECTIONS, MOST_IDLE_PERCENT, MOST_TIMES_ALONE = 400.0, 20, 15.0, 1.5
"""The targets."""


def tell(line: Mapping[str, Any]) -> None:
    print(json.dumps({"benchmark": "many", **line}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench many", description=__doc__)
    parser.add_argument("--outboxes", type=int, default=200, help="how many there are (default: 200)")
    parser.add_argument("--busy", type=int, default=10, help="how many of them are busy (default: 10)")
    parser.add_argument("--rate", type=float, default=20.0, help="records a second of each busy one (default: 20)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each part lasts (default: 20)")
    given = parser.parse_args()
    with tenants(given.outboxes) as bench:
        alone = bench.alone(given.rate, given.seconds)
        tell({"measured": "alone", **alone})
        idle, busy = bench.together(given.busy, given.rate, given.seconds)
        tell({"measured": "idle", "outboxes": given.outboxes, **idle})
        tell({"measured": "busy", "outboxes": given.outboxes, "busy": given.busy, **busy})
    for line in targets(alone, idle, busy):
        tell(line)


def targets(alone: Mapping[str, Any], idle: Mapping[str, Any], busy: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What is asked for, what was measured, and whether that is enough."""
    times = round(busy["p50_ms"] / alone["p50_ms"], 2)
    for target, measured, most in (
        ("memory in MB", max(idle["memory_mb"], busy["memory_mb"]), MOST_MB),
        ("connections to Postgres", max(idle["connections"], busy["connections"]), MOST_CONNECTIONS),
        ("percent of a core at rest", idle["cpu_percent"], MOST_IDLE_PERCENT),
        ("p50 of a busy one, in times of its own alone", times, MOST_TIMES_ALONE),
    ):
        yield {"summary": "target", "target": target, "most": most, "measured": measured, "met": measured <= most}


class Tenants:
    """So many outboxes in one database, ready to be harvested, and what one process takes for them."""

    def __init__(self, settings: dict[str, Any], folder: Path, names: Sequence[str]) -> None:
        self._settings = settings
        self._folder = folder
        self._names = names

    def alone(self, rate: float, seconds: float) -> dict[str, Any]:
        """Harvest one outbox by itself, and return how soon its records come."""
        with self._harvest("alone", {"outbox_table": self._names[0]}) as process:
            process.wait_for('"took_over"', within=LONGEST)
            return self._streamed(psutil.Process(process.pid), self._names[:1], rate, seconds)

    def together(self, busy: int, rate: float, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Harvest all in one process; return what it takes while all rest, and while some are busy."""
        with self._harvest("together", {"outboxes": ["tenant_*.outbox"]}) as process:
            process.wait_for(f'"resting": {len(self._names)}', within=LONGEST)
            time.sleep(SETTLING)
            idle = self._used(psutil.Process(process.pid), lambda: time.sleep(seconds))
            chosen = random.Random(1).sample(self._names, busy)
            found = self._streamed(psutil.Process(process.pid), chosen, rate, seconds)
            disturbed = sum('"event": "stood_by"' in line or '"event": "error"' in line for _, line in process.lines)
            return idle, {**found, "disturbances": disturbed}

    @contextmanager
    def _harvest(self, name: str, outboxes: Mapping[str, Any]) -> Iterator[Child]:
        file = self._folder / f"{name}.yaml"
        file.write_text(json.dumps({**self._settings, **outboxes}))
        child = Child([*COMMAND, "harvest", "-f", file], log=file.with_suffix(".log"))
        try:
            yield child
        finally:
            child.end()

    def _streamed(self, process: psutil.Process, names: Sequence[str], rate: float, seconds: float) -> dict[str, Any]:
        """Let writers commit, and return how soon a consumer has seen their records, and what that took."""
        committed: dict[str, float] = {}
        seen: dict[str, float] = {}
        ending = threading.Event()
        consumer = threading.Thread(target=self._consume, args=(self._consumer(), seen, ending), daemon=True)
        consumer.start()
        for name in names:  # wake them: that is not what is measured
            self._write(name, 1, committed, pause=0)
        _wait(lambda: seen.keys() >= committed.keys())
        woken = set(committed)

        def stream() -> None:
            threads = [
                threading.Thread(target=self._write, args=(name, int(rate * seconds), committed, 1 / rate))
                for name in names
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        used = self._used(process, stream)
        _wait(lambda: seen.keys() >= committed.keys())
        ending.set()
        consumer.join()
        delays = sorted(1000 * (seen[key] - committed[key]) for key in committed.keys() - woken)
        return {
            "records": len(delays),
            "p50_ms": round(statistics.median(delays), 2),
            "p99_ms": round(delays[int(0.99 * len(delays))], 2),
            **used,
        }

    def _write(self, name: str, count: int, committed: dict[str, float], pause: float) -> None:
        chance = random.Random(name)
        with psycopg.connect(self._settings["data_source"], autocommit=True) as connection:
            for _ in range(count):
                key = f"{name} {len(committed)} {chance.random()}"
                with connection.transaction():
                    stash(connection, OutboxRecord(TOPIC, key, "{}"), outbox=name)
                committed[key] = time.monotonic()
                time.sleep(pause * chance.uniform(0.5, 1.5))

    def _consumer(self) -> Consumer:
        """A consumer of what is published from now on."""
        settings = {"group.id": "bench", "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
        consumer = Consumer({**self._settings["kafka"], **settings})
        places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        for place in places:
            place.offset = consumer.get_watermark_offsets(place, timeout=LONGEST)[1]
        consumer.assign(places)
        return consumer

    def _consume(self, consumer: Consumer, seen: dict[str, float], ending: threading.Event) -> None:
        while not ending.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen[(message.key() or b"").decode()] = time.monotonic()
        consumer.close()

    def _used(self, process: psutil.Process, activity: Callable[[], None]) -> dict[str, Any]:
        """What the process takes while something goes on."""
        ending, connections, memory = threading.Event(), [0], [0]

        def look() -> None:
            with psycopg.connect(self._settings["data_source"], autocommit=True) as connection:
                while not ending.wait(0.25):
                    row = connection.execute(
                        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'airflow-outbox%'"
                    ).fetchone()
                    connections.append(int(row[0]) if row else 0)
                    memory.append(process.memory_info().rss)

        looking = threading.Thread(target=look)
        looking.start()
        began, before = time.monotonic(), process.cpu_times()
        activity()
        after, took = process.cpu_times(), time.monotonic() - began
        ending.set()
        looking.join()
        used = after.user + after.system - before.user - before.system
        return {
            "memory_mb": round(max(memory) / 2**20, 1),
            "connections": max(connections),
            "threads": process.num_threads(),
            "cpu_percent": round(100 * used / took, 1),
        }


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the records did not come")
        time.sleep(0.05)


@contextmanager
def tenants(count: int) -> Iterator[Tenants]:
    """Servers of their own, with so many outboxes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-outbox-bench-")))
        folder.chmod(0o755)
        postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres", fsync=False))
        kafka = stack.enter_context(EmbeddedKafka(folder / "kafka", classpath=kafka_jars(ROOT / ".dev" / "jars")))
        settings = {"data_source": postgres.dsn(), "kafka": {"bootstrap.servers": kafka.bootstrap}}
        names = [f"tenant_{number:03}.outbox" for number in range(count)]
        topics = [NewTopic(TOPIC, PARTITIONS, 1)]
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            for name in names:
                config = HarvestConfig.validated({**settings, "outbox_table": name}, source="bench")
                init_outbox(connection, config.name)
                own = KafkaNames.of(config, OutboxTable(connection, config.name).identity().outbox_id)
                topics.append(NewTopic(own.ledger_topic, 1, 1, config={"cleanup.policy": "compact"}))
                if name == names[0]:
                    topics.append(NewTopic(own.leader_topic, 1, 1))
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for made in admin.create_topics(topics, operation_timeout=LONGEST, request_timeout=LONGEST).values():
            made.result()
        make_list_topics(HarvestConfig.validated({**settings, "outboxes": ["tenant_*.outbox"]}, source="bench"))
        yield Tenants(settings, folder, names)


if __name__ == "__main__":
    main()
