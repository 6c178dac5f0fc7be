"""The member that has written a new layout leads its shards at once, while the group still elects.

A group that has no members waits for them, by Kafka's default for 3 s. Nothing would be published meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
from confluent_kafka import Consumer
from support.harvesting import CALM, CHILD, Outbox, Process, make_outbox, wait_until
from support.sharding import LED, config_of

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.operate.reshard import prepare
from airflow_outbox.postgres.layout import ask_layout
from airflow_outbox.postgres.names import OutboxName

SHARDS, KEYS = 4, 40
VIEWS = "SELECT shard, view FROM outbox_shard WHERE slots IS DISTINCT FROM '{}'"


@contextmanager
def another_election(outbox: Outbox) -> Iterator[None]:
    """A stranger is in the group of several shards, and spreads partitions in another way: Kafka lets no member in."""
    [(outbox_id,)] = outbox.query("SELECT outbox_id FROM outbox_state")
    names = KafkaNames.of(config_of(outbox), outbox_id)
    settings = {
        "bootstrap.servers": outbox.bootstrap,
        "group.id": names.group_of(SHARDS),
        "partition.assignment.strategy": "range",
    }
    stranger = Consumer(settings)
    stranger.subscribe([names.leader_topic])
    wait_until(lambda: stranger.poll(0.1) is None and stranger.assignment(), doing="joining")
    try:
        yield
    finally:
        stranger.close()


def told(member: Process, event: str) -> list[dict[str, Any]]:
    """What the member has told since it wrote the layout."""
    names = [each["event"] for each in member.events]
    since = names.index("resharded") if "resharded" in names else len(names)
    return [each for each in member.events[since:] if each["event"] == event]


def views(outbox: Outbox) -> dict[int, UUID]:
    return dict(outbox.query(VIEWS))


def test_a_new_layout_is_led_before_the_group_has_elected(
    database: str, kafka: EmbeddedKafka, topic_prefix: str
) -> None:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", limits=CALM)
    prepare(config_of(outbox), shards=SHARDS)
    member = Process(CHILD, first_line={"config": outbox.settings, "until": "forever"})
    try:
        outbox.stash(400, keys=KEYS)
        wait_until(lambda: outbox.left() == 0)
        with another_election(outbox):
            with psycopg.connect(outbox.database, autocommit=True) as connection:
                ask_layout(connection, OutboxName.parse(outbox.name), shards=SHARDS)
            outbox.stash(400, keys=KEYS, start=400)
            wait_until(
                lambda: outbox.query(LED) == [(SHARDS,)] and outbox.left() == 0, doing=lambda: str(member.events)
            )
            assert sorted(each["shard"] for each in told(member, "stands_in")) == [*range(SHARDS)]
            assert told(member, "elected") == []
            before = views(outbox)
        wait_until(lambda: len(told(member, "elected")) == SHARDS, doing=lambda: str(member.events))
        outbox.stash(400, keys=KEYS, start=800)
        wait_until(lambda: outbox.left() == 0)
        assert told(member, "fenced") == []
        if not member.was_unseated:
            assert views(outbox) == before, "it went on when it was elected"
            assert told(member, "stood_by") == []
    finally:
        member.end()
    assert outbox.by_key() == {f"k{key}": list(range(key, 1_200, KEYS)) for key in range(KEYS)}
