"""One turn of this project over a backlog for many topics. It ends when its last row is purged. Then a consumer that
reads committed reads all topics.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.peers.processes import ContenderError
from benchmarks.peers.rows import SHAPES, number_of
from benchmarks.peers.servers import PARTITIONS, BenchServers, Workspace
from benchmarks.peers.sightings import RefusedError
from benchmarks.peers.usage import Usage
from benchmarks.scaled.bloated import Backlogged
from benchmarks.scaled.generated import GENERATED

_PATIENCE = 120.0
_QUIET_SECONDS = 20.0
_LOOK_SECONDS = 0.02
_CALM_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Spread:
    """The result of a turn: figures, or why it gets none."""

    topics: int
    partitions: int
    round: int
    records: int
    seconds: float | None = None
    """From the event `view` until the last row was purged."""
    peak_mb: float | None = None
    others_cores: float | None = None
    refused: str | None = None

    @property
    def rate(self) -> float | None:
        """Records a second."""
        return None if self.seconds is None else self.records / self.seconds

    def as_line(self) -> dict[str, Any]:
        rate = None if self.rate is None else round(self.rate)
        return {**asdict(self), "records_per_second": rate}


def spread(bench: BenchServers, *, topics: int, rows: int, number: int) -> Spread:
    """Publish rows that take turns over topics: one of four partitions, or many of one partition each."""
    partitions = PARTITIONS if topics == 1 else 1
    result: dict[str, Any] = {"topics": topics, "partitions": topics * partitions, "round": number, "records": rows}
    try:
        seconds, peak_mb, others = _measured(bench, topics=topics, rows=rows)
    except (ContenderError, RefusedError) as error:
        return Spread(**result, refused=str(error))
    return Spread(**result, seconds=round(seconds, 3), peak_mb=round(peak_mb), others_cores=round(others, 2))


def _measured(bench: BenchServers, *, topics: int, rows: int) -> tuple[float, float, float]:
    with bench.workspace() as workspace:
        names = [workspace.topic] if topics == 1 else [f"{workspace.topic}-{number}" for number in range(topics)]
        if topics > 1:
            _make(workspace, names)
        with Usage() as usage, Backlogged("many topics").turn(workspace) as turn:
            usage.watch("postgres", bench.postgres.pid, with_family=True)
            usage.watch("kafka", bench.kafka.pid)
            GENERATED.load(workspace.dsn, SHAPES["keys"], workspace.topic, rows, topics=topics)
            time.sleep(_CALM_SECONDS)
            child = turn.begin()
            usage.watch("contender", child.pid, with_family=True)
            ended = _wait_until_purged(workspace)
            begun = turn.begun()
            time.sleep(0.2)  # for one more look at what is used
        _require_right(workspace, names, rows=rows, partitions=PARTITIONS if topics == 1 else 1)
    return ended - begun, usage.peak_mb("contender"), usage.others_cores(begun, ended)


def _make(workspace: Workspace, names: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": workspace.bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in names], request_timeout=60).values():
        made.result(60)
    workspace.make_topic(f"{workspace.topic}-made")  # once it has a leader, those before it have


def _wait_until_purged(workspace: Workspace) -> float:
    """The moment at which the last row is gone. Batches are purged in the order of their ids."""
    deadline = time.monotonic() + _PATIENCE
    with psycopg.connect(workspace.dsn, autocommit=True) as connection:
        last = connection.execute("SELECT max(id) FROM outbox").fetchone()
        while connection.execute("SELECT FROM outbox WHERE id = %s", last).fetchone() is not None:
            if time.monotonic() > deadline:
                raise RefusedError(f"not all was published within {_PATIENCE:g} s")
            time.sleep(_LOOK_SECONDS)
        return time.monotonic()


def _require_right(workspace: Workspace, names: list[str], *, rows: int, partitions: int) -> None:
    """Require each row once, and the rows of each topic and key in their order."""
    consumer = Consumer(
        {
            "bootstrap.servers": workspace.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    unread = {(name, number) for name in names for number in range(partitions)}
    consumer.assign([TopicPartition(name, number, 0) for name, number in unread])
    times_seen, disordered, foreign = bytearray(rows), 0, 0
    latest: dict[tuple[str | None, bytes | str | None], int] = {}
    heard_at = time.monotonic()
    while unread and time.monotonic() - heard_at < _QUIET_SECONDS:
        for message in consumer.consume(1000, timeout=0.1):
            heard_at = time.monotonic()
            error, topic = message.error(), message.topic()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((str(topic), int(message.partition() or 0)))
                continue
            number = number_of(message.value() or b"")
            if number is None or number >= rows:
                foreign += 1
                continue
            times_seen[number] = min(2, times_seen[number] + 1)
            lane = topic, message.key()
            disordered += number < latest.get(lane, -1)
            latest[lane] = number
    consumer.close()
    lost, doubled = times_seen.count(0), times_seen.count(2)
    if unread or lost or doubled or disordered or foreign:
        text = f"{lost} lost, {doubled} doubled, {disordered} disordered, {foreign} foreign"
        raise RefusedError(f"of {rows} rows: {text}" + (f"; {len(unread)} partitions not read" if unread else ""))
