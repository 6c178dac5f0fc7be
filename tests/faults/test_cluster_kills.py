"""Leaders of two and three real clusters are killed between any two steps, again and again."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import TimeoutExpired

import pytest
from faults.atomic import InterleavedLoad, SourceRecord, read_batches, torn
from faults.clustered import STEPS
from faults.regions import Regions, assert_same, regions

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames

KILLS = {"short": 2, "long": 25}
"""For two clusters, and as many for three."""
OF_OWED = "keep"
"""The step that only a cluster that is away brings about."""
SOME = ("commit on a backup", "replay")
"""The steps of the short form, the last ones first where there are more kills."""
COMPLETING = ("replay", "commit", "replayed", "begin", "note producers")
"""Steps by which a successor completes a batch that is on some clusters only."""
ONCE = ("take over", "fence", "read a ledger")
"""Steps that come once a term."""
LIMITS = {"batch_records": 40, "max_in_flight_records": 120}
NO_STEP_COMES = 5.0
"""Seconds after which a leader is killed wherever it is."""


@pytest.fixture(scope="module")
def backups(server_folder: Path, kafka_classpath: str) -> Iterator[dict[str, EmbeddedKafka]]:
    """Two more clusters."""
    properties = {"group.min.session.timeout.ms": "1000"}
    brokers = {
        name: EmbeddedKafka(server_folder / f"kills-{name}", classpath=kafka_classpath, properties=properties)
        for name in ("west", "north")
    }
    yield {name: broker.start() for name, broker in brokers.items()}
    for broker in brokers.values():
        broker.kill()


@pytest.fixture(params=[2, 3], ids=["two", "three"])
def scene(
    request: pytest.FixtureRequest,
    database: str,
    kafka: EmbeddedKafka,
    backups: dict[str, EmbeddedKafka],
    topic_prefix: str,
) -> Iterator[Regions]:
    """An atomic outbox on so many clusters."""
    clusters = dict(list({"primary": kafka, **backups}.items())[: request.param])
    with regions(database, topic_prefix + "data", clusters, {}, limits=LIMITS, atomic=True) as scene:
        yield scene


def purged_is_everywhere(scene: Regions, load: InterleavedLoad) -> None:
    """Every cluster has what Postgres has purged."""
    known = {(transaction, number) for transaction, size in dict(load.committed).items() for number in range(size)}
    waiting = {
        tuple(row[0])
        for row in scene.outbox.query(
            "SELECT ARRAY[(kafka_value::json->>0)::int, (kafka_value::json->>1)::int] FROM outbox"
        )
    }
    for name, outbox in scene.on.items():
        records = (SourceRecord.of(message) for message in outbox.committed())
        seen = {(record.transaction, record.number) for record in records}
        assert known - waiting <= seen, f"{name} lacks what was purged"


def test_kill_9_between_any_two_steps(scene: Regions, is_long: bool, seed: int) -> None:
    draw, hits = random.Random(seed), Counter[str]()
    load = InterleavedLoad(scene.outbox, sizes=[1, 30, 3, 100, 7, 55])
    load.start()
    is_divided = False  # a batch is on some clusters only
    for kill in range(KILLS["long" if is_long else "short"]):
        step = (
            draw.choice(COMPLETING if is_divided else [step for step in STEPS if step != OF_OWED])
            if is_long
            else SOME[kill]
        )
        times = draw.randint(1, 8) if is_long and step not in (*ONCE, *COMPLETING) else 1
        leader = scene.start(kill=step, armed=True, times=times)
        leader.wait_for("elected")
        try:
            leader.popen.wait(draw.uniform(0, NO_STEP_COMES) if is_long else None)
            hits[step] += 1
            is_divided = step == "commit on a backup" or (is_divided and step != "begin")
        except TimeoutExpired:
            leader.popen.kill()
            is_divided = False
        leader.ends()
        assert leader.popen.returncode == -signal.SIGKILL
        purged_is_everywhere(scene, load)
    load.finish()
    leader = scene.start()
    scene.drains()
    leader.popen.terminate()
    leader.ends()
    found = {name: outbox.committed() for name, outbox in scene.on.items()}
    assert_same(found)
    names = KafkaNames.of(
        HarvestConfig.validated(scene.outbox.settings, source="test"),
        scene.outbox.query("SELECT outbox_id FROM outbox_state")[0][0],
    )
    for name, messages in found.items():
        batches = read_batches(scene.on[name], names.ledger_topic, scene.brokers[name])
        assert torn(load.committed, messages, batches) == [], name
    assert sum(hits.values()) >= (10 if is_long else 2), hits  # others were killed somewhere
