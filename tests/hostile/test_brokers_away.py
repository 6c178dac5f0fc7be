"""Two brokers, and one of them is killed: a topic that can't do without it waits as a whole, all others go on; and when
the broker is back, so is the topic, by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from hostile.conftest import MODES
from hostile.innocents import Innocents, again_and_again
from support.harvesting import PARTITIONS, Outbox, make_outbox

from airflow_outbox import OutboxRecord, Ticket, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.tickets.published import published

LIMITS = {"delivery_timeout": 5, "transaction_timeout": 20}
KEYS = 8

REPLICAS = {
    "no leader": ([[2], [2], [1], [1]], {}),
    "too few replicas": ([[1, 2], [1, 2], [2, 1], [2, 1]], {"min.insync.replicas": "2"}),
}
CASES = [("single", "no leader"), ("atomic", "too few replicas"), ("at least once", "no leader")]
Brokers = tuple[EmbeddedKafka, EmbeddedKafka]


@pytest.fixture(scope="module")
def brokers(server_folder: Path, kafka_classpath: str) -> Iterator[Brokers]:
    """The first has all but one topic: the second is started when those are made."""
    with EmbeddedKafka(server_folder / "first", classpath=kafka_classpath) as first:
        second = EmbeddedKafka(server_folder / "second", classpath=kafka_classpath, joins=first)
        yield first, second
        second.stop()


@pytest.fixture
def innocents(mode: str, database: str, brokers: Brokers, topic_prefix: str, tmp_path: Path) -> Innocents:
    first, second = brokers
    second.stop()
    outbox = make_outbox(database, bootstrap=first.bootstrap, topic=topic_prefix + "data", **MODES[mode])
    return Innocents(outbox, tmp_path / "outbox.yaml")


class ReplicatedTopic:
    """A topic that can't do without the second broker."""

    def __init__(self, outbox: Outbox, lack: str) -> None:
        self.outbox = replace(outbox, topic=outbox.topic + "-sick")
        self.written = 0
        admin = AdminClient({"bootstrap.servers": outbox.bootstrap})
        assignment, config = REPLICAS[lack]
        topic = NewTopic(self.outbox.topic, PARTITIONS, replica_assignment=assignment, config=config)
        admin.create_topics([topic])[topic.topic].result()

    def write(self, records: int = 20) -> Ticket:
        numbers = range(self.written, self.written + records)
        self.written += records
        rows = [OutboxRecord(self.outbox.topic, f"h{number % KEYS}", str(number)) for number in numbers]
        with psycopg.connect(self.outbox.database) as connection:
            return stash(connection, rows)

    def is_published(self) -> bool:
        """Whether any of it is; a new topic may have no leaders yet."""
        try:
            return bool(self.outbox.published())
        except KafkaException:
            return False

    def lanes(self) -> dict[str, list[int]]:
        lanes = self.outbox.by_key()
        if self.outbox.settings.get("delivery") == "at_least_once":  # what comes again is left out
            return {key: list(dict.fromkeys(numbers)) for key, numbers in lanes.items()}
        return lanes

    def whole(self) -> dict[str, list[int]]:
        return {f"h{key}": list(range(key, self.written, KEYS)) for key in range(KEYS)}


@pytest.mark.long  # two brokers, one of which goes and comes back: 60 s of a processor
@pytest.mark.parametrize(("mode", "lack"), CASES)
def test_a_topic_that_lacks_a_broker_waits_and_comes_back(
    mode: str, lack: str, innocents: Innocents, brokers: Brokers
) -> None:
    _, second = brokers
    outbox = innocents.outbox
    with innocents.harvested(limits=LIMITS):
        second.start()
        sick = ReplicatedTopic(outbox, lack)

        def write() -> None:
            sick.write()
            innocents.write(records=20)

        with again_and_again(write):
            innocents.wait_until(sick.is_published, "nothing is published")
            second.kill()  # amid transactions
            threading.Event().wait(1)
        innocents.come_out()
        away = "SELECT true FROM outbox_parked WHERE cause = 'unavailable' LIMIT 1"
        innocents.wait_until(lambda: outbox.query(away) == [(True,)], "it is not set aside")
        innocents.around(sick.write)  # from now on nobody waits
        innocents.stand(named="unavailable")
        second.start()

        def is_back() -> bool:
            return outbox.query("SELECT count(*) FROM outbox_parked") == [(0,)]

        innocents.wait_until(is_back, "it stays away")
        innocents.wait_until(lambda: outbox.left() == 0, "records wait")
        innocents.around(sick.write)
        innocents.wait_until(lambda: outbox.left() == 0, "records wait")
        assert sick.lanes() == sick.whole()
        if mode == "at least once":
            return
        with psycopg.connect(outbox.database, autocommit=True) as connection:
            ticket = sick.write()
            innocents.wait_until(lambda: published(connection, ticket), "nobody says that it is published")
