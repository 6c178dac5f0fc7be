"""The how-to 'Publish to two regions', as it is written, with the failures that it goes through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from faults.drill import Drill
from faults.regions import assert_same
from support.harvesting import COMMAND, PATIENCE, Outbox, Process, make_topic, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "two-regions.md"
DATA_SOURCE = "host=127.0.0.1 port=5432 dbname=app user=app"


@pytest.fixture
def east_and_west(server_folder: Path, kafka_classpath: str) -> Iterator[tuple[EmbeddedKafka, EmbeddedKafka]]:
    east, west = (
        EmbeddedKafka(server_folder / f"drill-{name}", classpath=kafka_classpath) for name in ("east", "west")
    )
    yield east.start(), west.start()
    east.kill()
    west.kill()


def test_the_drill(database: str, east_and_west: tuple[EmbeddedKafka, EmbeddedKafka], tmp_path: Path) -> None:
    east, west = east_and_west
    outbox, on_west = (Outbox(database, broker.bootstrap, "orders") for broker in (east, west))
    addresses = {"kafka.east.example:9092": east.bootstrap, "kafka.west.example:9092": west.bootstrap}
    drill = Drill(PAGE, tmp_path, {DATA_SOURCE: database, **addresses})
    members: list[Process] = []
    stashed = 0

    def stash(count: int = 20) -> None:
        nonlocal stashed
        outbox.stash(count, start=stashed)
        stashed += count

    def make_topics() -> None:
        for broker in (east, west):
            make_topic({"bootstrap.servers": broker.bootstrap}, outbox.topic)

    def start_members() -> None:
        members.extend(Process([*COMMAND, "harvest", "-f", str(tmp_path / "outbox.yaml")]) for _ in range(2))
        wait_until(lambda: any(event["event"] == "took_over" for each in members for event in each.events))
        stash()
        wait_until(lambda: outbox.left() == 0)

    def lose_the_west() -> None:
        west.kill()
        stash()

    def lose_the_east() -> None:
        drill.run("airflow-outbox clusters promote -f outbox.yaml primary")
        stash()
        wait_until(lambda: outbox.left() == 0)
        assert_same({"east": outbox.committed(), "west": on_west.committed()})
        east.kill()
        stash()

    def empty_the_east() -> None:
        wait_until(lambda: outbox.left() == 0)
        assert_same({"east": outbox.committed(), "west": on_west.committed()})
        drill.run("airflow-outbox clusters detach -f outbox.yaml primary")
        admin = AdminClient({"bootstrap.servers": east.bootstrap})
        own = [topic for topic in admin.list_topics().topics if topic.startswith("airflow-outbox.")]
        for gone in admin.delete_topics([outbox.topic, *own]).values():
            gone.result(PATIENCE)
        make_topic({"bootstrap.servers": east.bootstrap}, outbox.topic)

    try:
        done = drill.follow(
            {
                "Set it up": make_topics,
                "Watch them": start_members,
                "With `require: all`": lose_the_west,
                "The backup is back": west.start,
                "The primary is lost for good": lose_the_east,
                "The old primary is back": east.start,
                "Reset a cluster": empty_the_east,
            }
        )
        stash()
        wait_until(lambda: outbox.left() == 0)
    finally:
        for member in members:
            member.end()
    assert len(done) >= 20, done
    trail = drill.run("airflow-outbox trail -f outbox.yaml")
    assert [trail.count(each) for each in ("detach", "promote", "primary reset")] == [2, 3, 1]
    assert sorted(int(message.value() or b"") for message in on_west.committed()) == list(range(stashed))
    in_the_east = sorted(int(message.value() or b"") for message in outbox.committed())
    assert in_the_east == list(range(stashed - 20, stashed))
