"""How soon a waiting trigger knows that its ticket is published, and how much a thousand of them cost the database.

*Latency*: transactions are stashed at a steady rate, and for each a trigger of Airflow's waits, as it does in a
triggerer. A consumer that reads committed, in a process and with a clock reading of its own, notes when it sees each
transaction's record. A trigger's event is timed from that moment, and from the commit in Postgres. With `--markers` the
same is measured, in turn, with a harvester that waits for no markers, and calls published what Kafka has only decided:
the difference is what that wait costs.

*Cost*: triggers wait for tickets while nothing is published, and then while a tenth of them is published every second.
The server's log counts the statements of all their connections.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from psycopg.conninfo import conninfo_to_dict

from airflow_outbox import OutboxRecord, Ticket, stash
from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "tickets"
PARTITIONS = 4
# For the connection that triggers share, and any that one of them may have opened by itself.
OF_TRIGGERS = re.compile(r" airflow-outbox(?: listen)?: LOG:  (?:statement|execute)")
CONSUMER = """
import json, sys, time
from confluent_kafka import Consumer, TopicPartition
bootstrap, topic, partitions = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": "read_committed",
                     "fetch.wait.max.ms": 5, "enable.auto.commit": False})
consumer.assign([TopicPartition(topic, number, 0) for number in range(int(partitions))])
while True:
    message = consumer.poll(1.0)
    if message is not None and message.error() is None:
        print(json.dumps([message.value().decode(), time.time()]), flush=True)
"""
HARVESTER = [sys.executable, "-m", "airflow_outbox.harvest"]
WITHOUT_MARKERS = """
from airflow_outbox.harvest import __main__
from airflow_outbox.harvest.protocol.turns import Turns
committed = Turns.committed
Turns.committed = lambda turns, ends: committed(turns, {})  # nothing of it has to become readable
__main__.main()
"""


def say(text: str) -> None:
    print(f"bench tickets: {text}", file=sys.stderr, flush=True)


class HarvestedOutbox:
    """An outbox on servers of its own, harvested by a process; and Airflow's default connection to it."""

    def __init__(self, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-outbox-bench-")))
        folder.chmod(0o755)
        settings = {"log_statement": "all", "log_line_prefix": "%m [%p] %a: "}
        self.postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres", settings=settings))
        jars = kafka_jars(ROOT / ".dev" / "jars")
        self.bootstrap = stack.enter_context(EmbeddedKafka(folder / "kafka", classpath=jars)).bootstrap
        self.data_source = self.postgres.create_database("bench")
        self.connection = stack.enter_context(psycopg.connect(self.data_source, autocommit=True))
        kafka = {"bootstrap.servers": self.bootstrap}
        self.config = {"data_source": self.data_source, "kafka": kafka}
        config = HarvestConfig.validated(self.config, source="bench")
        init_outbox(self.connection, config.name)
        identity = OutboxTable(self.connection, OutboxName.parse("outbox")).identity()
        make_internal_topics(config, KafkaNames.of(config, identity.outbox_id))
        admin = AdminClient({**kafka})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        server = conninfo_to_dict(self.data_source)
        known = {"host": server["host"], "port": int(server["port"] or 5432), "schema": "bench"}
        known |= {"login": server["user"], "password": server["password"]}
        os.environ["AIRFLOW_HOME"] = str(folder)
        os.environ["AIRFLOW_CONN_POSTGRES_DEFAULT"] = json.dumps({"conn_type": "postgres", **known})

    @contextmanager
    def harvesting(self, command: Sequence[str] = HARVESTER) -> Iterator[None]:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"config": self.config, "until": "forever"}) + "\n")
            process.stdin.flush()
            try:
                yield
            finally:
                process.terminate()

    def stash(self, value: str) -> Ticket:
        with self.connection.transaction():
            return stash(self.connection, OutboxRecord(TOPIC, value, value))

    def statements(self) -> int:
        """How many statements the triggers' connections have sent."""
        return len(OF_TRIGGERS.findall(self.postgres.log.read_text(errors="replace")))


async def event(ticket: Ticket, *, has_committed: bool = True) -> float:
    """When a trigger has its event. The sensor has usually seen, before it defers, that the transaction committed."""
    from airflow_outbox.triggers.published import OutboxPublishedTrigger

    found = await anext(OutboxPublishedTrigger(ticket=str(ticket), has_committed=has_committed).run())
    assert found.payload["status"] == "published", found
    return time.time()


async def latency(
    outbox: HarvestedOutbox, *, seconds: float, rate: float, harvester: Sequence[str] = HARVESTER
) -> dict[str, Any]:
    """One measurement. `harvester` is another one than the usual, to compare with."""
    command = [sys.executable, "-c", CONSUMER, outbox.bootstrap, TOPIC, str(PARTITIONS)]
    consumer = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert consumer.stdout is not None
    with outbox.harvesting(harvester):
        await event(await asyncio.to_thread(outbox.stash, "first"))
        say(f"{rate:g} transactions a second for {seconds:g} s")
        waiting: dict[str, asyncio.Task[float]] = {}
        committed: dict[str, float] = {}
        run = uuid.uuid4()  # the topic also has the values of earlier measurements
        for value in (f"{run} {number}" for number in range(int(seconds * rate))):
            ticket = await asyncio.to_thread(outbox.stash, value)
            committed[value] = time.time()
            waiting[value] = asyncio.create_task(event(ticket))
            await asyncio.sleep(1 / rate)
        known = dict(zip(waiting, await asyncio.gather(*waiting.values()), strict=True))
        seen: dict[str, float] = {}
        while not known.keys() <= seen.keys():
            value, at = json.loads(await consumer.stdout.readline())
            seen[value] = at
    consumer.kill()
    await consumer.wait()
    return {
        "measured": "latency" if harvester is HARVESTER else "latency without the wait for markers",
        "transactions": len(known),
        "rate": rate,
        "from_consumer_ms": shares([known[value] - seen[value] for value in known]),
        "from_commit_ms": shares([known[value] - committed[value] for value in known]),
    }


def shares(delays: list[float]) -> dict[str, float]:
    delays.sort()
    places = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {name: round(1000 * delays[int(place * len(delays))], 1) for name, place in places.items()}


async def cost(outbox: HarvestedOutbox, *, waiting: int, seconds: float) -> list[dict[str, Any]]:
    with psycopg.connect(outbox.data_source) as writer:  # never commits: so that there is always somebody who waits
        last = asyncio.create_task(event(stash(writer, OutboxRecord(TOPIC, "open", "open")), has_committed=False))
        results = await _cost(outbox, waiting=waiting, seconds=seconds)
        last.cancel()
        writer.rollback()
    return results


async def _cost(outbox: HarvestedOutbox, *, waiting: int, seconds: float) -> list[dict[str, Any]]:
    tickets = [outbox.stash(f"cost {number}") for number in range(waiting)]
    events = [asyncio.create_task(event(ticket)) for ticket in tickets]
    await asyncio.sleep(10)
    say(f"{waiting} triggers wait for {seconds:g} s and nothing is published")
    begun, before = time.time(), outbox.statements()
    await asyncio.sleep(seconds)
    idle = (outbox.statements() - before) / (time.time() - begun)
    say("now all is published, and a new transaction for each that is done, for as long")
    done = 0
    with outbox.harvesting():
        while not any(each.done() for each in events):
            await asyncio.sleep(0.01)
        begun, before = time.time(), outbox.statements()
        while time.time() - begun < seconds:
            events = [each for each in events if not each.done()]
            done += waiting - len(events)
            missing = range(min(waiting - len(events), 20))
            fresh = [await asyncio.to_thread(outbox.stash, f"cost {done} {number}") for number in missing]
            events += [asyncio.create_task(event(ticket)) for ticket in fresh]
            await asyncio.sleep(0.1)
        busy = (outbox.statements() - before) / (time.time() - begun)
        await asyncio.gather(*events)
    return [
        {"measured": "cost while nothing is published", "waiting": waiting, "statements_a_second": round(idle, 1)},
        {"measured": "cost while transactions are published", "statements_a_second": round(busy, 1)},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench tickets", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long each measurement takes")
    parser.add_argument("--rate", type=float, default=20, help="transactions a second while latency is measured")
    parser.add_argument("--waiting", type=int, default=1000, help="how many triggers wait while cost is measured")
    parser.add_argument(
        "--markers",
        type=int,
        default=0,
        metavar="ROUNDS",
        help="measure only what the wait for markers costs, so often",
    )
    chosen = parser.parse_args()
    with ExitStack() as stack:
        outbox = HarvestedOutbox(stack)
        harvesters = [HARVESTER, [sys.executable, "-c", WITHOUT_MARKERS]] * chosen.markers or [HARVESTER]
        results = [
            asyncio.run(latency(outbox, seconds=chosen.seconds, rate=chosen.rate, harvester=harvester))
            for harvester in harvesters
        ]
        if not chosen.markers:
            results += asyncio.run(cost(outbox, waiting=chosen.waiting, seconds=chosen.seconds))
    for result in results:
        print(json.dumps({"benchmark": "tickets", **result}), flush=True)


if __name__ == "__main__":
    main()
