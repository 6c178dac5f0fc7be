"""A record that every look beforehand passes and the broker refuses, for another reason than its size: one without a
key, for a compacted topic. It is found, and parked; all else comes, once and in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from support.harvesting import COMMAND, PARTITIONS, Outbox, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

RECORDS, KEYS = 2_000, 20
REFUSED = (700, 1_301)
A_TRANSACTION = 10  # records


@pytest.fixture(params=["single", "atomic", "at least once"])
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str, request: pytest.FixtureRequest) -> Outbox:
    """Its topic is compacted, and its records need no key."""
    settings = {"single": {}, "atomic": {"atomic": True}, "at least once": {"delivery": "at_least_once"}}
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", **settings[request.param])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([outbox.topic])[outbox.topic].result()
    topic = NewTopic(outbox.topic, PARTITIONS, 1, config={"cleanup.policy": "compact"})
    wait_until(lambda: admin.create_topics([topic])[topic.topic].exception() is None)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER TABLE outbox ALTER kafka_key DROP NOT NULL")
    return outbox


@pytest.fixture
def harvester(outbox: Outbox, tmp_path: Path) -> Iterator[Process]:
    path = tmp_path / "outbox.yaml"
    path.write_text(yaml.safe_dump(outbox.settings))
    process = Process([*COMMAND, "harvest", "-f", str(path)])
    yield process
    process.end()


def stash_some_without_a_key(outbox: Outbox) -> None:
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        for first in range(0, RECORDS, A_TRANSACTION):
            connection.execute(
                """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)
                SELECT %s, CASE WHEN NOT place = ANY(%s) THEN 'k' || place %% %s END, place
                FROM generate_series(%s::integer, %s::integer) AS place""",
                (outbox.topic, list(REFUSED), KEYS, first, first + A_TRANSACTION - 1),
            )


def allow_records_without_a_key(outbox: Outbox) -> None:
    admin = AdminClient({"bootstrap.servers": outbox.bootstrap})
    policy = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, outbox.topic, incremental_configs=[policy])
    admin.incremental_alter_configs([resource])[resource].result()


def stays(place: int, outbox: Outbox) -> bool:
    """Whether this record is refused, or waits for one that is."""
    if not outbox.settings.get("atomic"):
        return place in REFUSED
    # Every other transaction has the keys of the one that is refused whole.
    return place >= REFUSED[0] and place // A_TRANSACTION % 2 == REFUSED[0] // A_TRANSACTION % 2


def test_a_record_that_only_the_broker_refuses_is_parked_and_others_go_on(outbox: Outbox, harvester: Process) -> None:
    harvester.wait_for("view")
    stash_some_without_a_key(outbox)
    wait_until(lambda: outbox.left() == 0, doing=str(harvester.events[-5:]))
    reasons = outbox.query(
        "SELECT kafka_value::integer, cause, reason FROM outbox_parked WHERE cause IS NOT NULL ORDER BY 1"
    )
    # As single records, the second one waits behind the first, in the lane of those without a key.
    refused = REFUSED if outbox.settings.get("atomic") else REFUSED[:1]
    assert [(place, cause) for place, cause, _ in reasons] == [(place, "refused") for place in refused], reasons
    assert "record" in reasons[0][2], reasons
    parked = {int(place) for (place,) in outbox.query("SELECT kafka_value FROM outbox_parked")}
    assert parked == {place for place in range(RECORDS) if stays(place, outbox)}
    assert lanes(outbox) == expected({place for place in range(RECORDS) if not stays(place, outbox)})
    allow_records_without_a_key(outbox)
    outbox.query("UPDATE outbox_parked SET requested = 'retry' WHERE cause IS NOT NULL RETURNING id")
    wait_until(lambda: outbox.query("SELECT count(*) FROM outbox_parked") == [(0,)])
    found = lanes(outbox)
    found[None].sort()  # they may go to any partition
    assert found == expected(set(range(RECORDS)))


def lanes(outbox: Outbox) -> dict[str | None, list[int]]:
    """The records in the topic by key, each key's in order."""
    found: dict[str | None, list[int]] = {}
    for message in outbox.committed():
        key = message.key()
        found.setdefault(None if key is None else key.decode(), []).append(int(message.value() or b"-1"))
    if outbox.settings.get("delivery") == "at_least_once":  # what comes again is left out
        return {key: list(dict.fromkeys(places)) for key, places in found.items()}
    return found


def expected(places: set[int]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for place in sorted(places):
        found.setdefault(None if place in REFUSED else f"k{place % KEYS}", []).append(place)
    return found
