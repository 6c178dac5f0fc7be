"""Shared by tests of harvesting: an outbox that is ready to be harvested, and harvesters as processes of their own."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.pq import ExecStatus

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.harvest.supervised_child import COMMAND as CHILD_COMMAND
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable

PARTITIONS = 4
PATIENCE = 180.0
"""Seconds that a test waits for what has to come. Only a program that does nothing more takes so long."""
SHORT_SESSION = {"session_timeout": 3}
"""The limit by which a successor leads soon after a leader was killed; the brokers of the tests allow it.

The time for heartbeats stays what it is: a busy machine unseats a leader who has less.
"""
CALM = {"heartbeat_timeout": 20, "session_timeout": 40}
"""Limits by which a busy machine unseats no leader, where a test does not wait for a successor of one that is gone."""
REGULAR_EVENTS = frozenset({"progress", "measured", "unreached", "verdict"})
"""Events that come by the clock."""
COMMAND = [str(Path(sys.executable).with_name("airflow-outbox"))]
CHILD = list(CHILD_COMMAND)
GOHARVEST_TABLE = """
CREATE TABLE {} (
    id BIGSERIAL PRIMARY KEY, create_time TIMESTAMP WITH TIME ZONE NOT NULL, kafka_topic VARCHAR(249) NOT NULL,
    kafka_key VARCHAR(100) NOT NULL, kafka_value VARCHAR(10000), kafka_header_keys TEXT[] NOT NULL,
    kafka_header_values TEXT[] NOT NULL, leader_id UUID
)
"""
AS_OF_VERSION_4 = """
DROP VIEW outbox_published;
DROP TABLE outbox_state, outbox_ledger, outbox_cluster, outbox_owed, outbox_owed_rows;
ALTER TABLE outbox_shard RENAME TO outbox_leader;
ALTER TABLE outbox_leader
    DROP COLUMN begun_view, DROP COLUMN secret, DROP COLUMN published_at, DROP CONSTRAINT slots_are_known,
    DROP COLUMN layout, DROP COLUMN slots, DROP COLUMN slots_view, DROP COLUMN lagging_after, DROP COLUMN stalled_after,
    DROP COLUMN silence, DROP COLUMN primary_cluster, DROP COLUMN begun_primary, ALTER COLUMN incarnation SET DEFAULT 1,
    ADD COLUMN schema_version INTEGER, ADD COLUMN paused BOOLEAN NOT NULL DEFAULT false, ADD COLUMN halted TEXT,
    ADD COLUMN system_identifier BIGINT, ADD COLUMN timeline INTEGER, ADD COLUMN table_oid OID,
    ADD COLUMN ledger_topic_id TEXT, ADD COLUMN witnessed_batch BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN ledger_offset BIGINT NOT NULL DEFAULT 0, ADD COLUMN transactional_id TEXT;
CREATE VIEW outbox_published AS
    SELECT shard, outbox_id, incarnation, delivery, watermark, covered_batch AS batch, topics FROM outbox_leader;
ALTER TABLE outbox_commits DROP COLUMN incarnation, DROP COLUMN owner, ADD PRIMARY KEY (app_id, version);
DROP TRIGGER asked ON outbox_parked;
DROP TRIGGER requested ON outbox_parked;
DROP FUNCTION outbox_asked;
DROP TABLE outbox_undeleted, outbox_trouble, outbox_member, outbox_positions, outbox_history, outbox_trail;
DROP FUNCTION outbox_pruned;
ALTER TABLE outbox_parked ALTER COLUMN kafka_key SET NOT NULL;
ALTER TABLE outbox DROP CONSTRAINT headers_have_one_dimension, DROP CONSTRAINT id_can_be_read;
DROP INDEX outbox_parked_cause_kafka_topic_number_idx, outbox_parked_kafka_topic_number_idx,
    outbox_parked_kafka_topic_number_idx1;
ALTER TABLE outbox_parked DROP COLUMN lane_key, DROP COLUMN requested_in;
CREATE INDEX ON outbox_parked (cause, kafka_topic) WHERE discarded_at IS NULL AND cause IS NOT NULL;
CREATE INDEX ON outbox_parked (kafka_topic, kafka_key, number) WHERE discarded_at IS NULL;
UPDATE outbox_leader SET schema_version = 4, transactional_id = 'the only one'
"""
"""Takes from a new outbox what schema versions 5 to 19 have added; the triggers against loaded rows stay."""


@dataclass(slots=True)
class Outbox:
    """An outbox with one data topic, ready to be harvested."""

    database: str
    bootstrap: str
    topic: str
    settings: dict[str, Any] = field(default_factory=dict)
    partitions: int = PARTITIONS

    @property
    def name(self) -> str:
        """The name of its table."""
        return str(self.settings.get("outbox_table", "outbox"))

    def stash(self, count: int, *, keys: int = 10, start: int = 0) -> None:
        with psycopg.connect(self.database) as connection:
            stash(
                connection,
                [OutboxRecord(self.topic, f"k{n % keys}", str(n), {"n": str(n)}) for n in range(start, start + count)],
                outbox=self.name,
            )

    def left(self) -> int:
        return int(self.query(f"SELECT count(*) FROM {self.name}")[0][0])

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, which commits."""
        return _kept.query(self.database, statement)

    def published(self) -> list[tuple[str, int]]:
        """Key and number of every record in the topic, each key's in the order in which a consumer sees them."""
        return [(message.key().decode(), int(message.value())) for message in self.committed()]

    def written(self) -> int:
        """How many messages the topic's log has, markers and all, whatever consumers see of them."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "unused"})
        try:
            partitions = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            return sum(consumer.get_watermark_offsets(partition, timeout=PATIENCE)[1] for partition in partitions)
        finally:
            consumer.close()

    def committed(self) -> list[Message]:
        """Every record of the topic that consumers who read committed see, each partition's in order."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        try:
            partitions = [TopicPartition(self.topic, number, 0) for number in range(self.partitions)]
            ends = [consumer.get_watermark_offsets(partition, timeout=PATIENCE)[1] for partition in partitions]
            consumer.assign(partitions)
            found: list[Message] = []
            unread = set(range(self.partitions))
            while unread:
                for message in consumer.consume(1000, timeout=0.1):
                    error, partition, offset = message.error(), message.partition(), message.offset()
                    if error is None:
                        found.append(message)
                        offset += 1
                    elif error.code() != KafkaError._PARTITION_EOF:
                        continue
                    if offset >= ends[partition]:  # a log that grows has no end
                        unread.discard(partition)
            return found
        finally:
            consumer.close()

    def by_key(self) -> dict[str, list[int]]:
        lanes: dict[str, list[int]] = {}
        for key, number in self.published():
            lanes.setdefault(key, []).append(number)
        return lanes


def make_outbox(
    database: str, *, bootstrap: str, topic: str, key_type: str = "varchar(100)", **settings: Any
) -> Outbox:
    """Make the tables, the data topic and the internal topics, for a configuration with these settings, too."""
    reach = {} if "clusters" in settings else {"kafka": {"bootstrap.servers": bootstrap}}
    settings = {"data_source": database, **reach, **settings}
    outbox = Outbox(database, bootstrap, topic, settings)
    config = HarvestConfig.validated(outbox.settings, source="test")
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, config.name, key_type=key_type)
        identity = OutboxTable(connection, config.name).identity()
        add_clusters(connection, config.name, config.clusters)
    make_internal_topics(config, KafkaNames.of(config, identity.outbox_id))
    for cluster in config.by_cluster().values():
        make_topic({**cluster.kafka}, outbox.topic)
    return outbox


def make_topic(
    kafka: dict[str, Any], name: str, *, partitions: int = PARTITIONS, config: dict[str, str] | None = None
) -> None:
    """Make a topic, on the cluster that these settings lead to, and wait until the broker knows it, too."""
    admin = AdminClient(kafka)
    admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result()
    wait_until(lambda: partitions_of(admin, name) == partitions)


def partitions_of(admin: AdminClient, topic: str) -> int:
    """How many partitions the broker knows of a topic: for a moment it may know less than was made."""
    return len(admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions)


class PatienceExhaustedError(Exception):
    """What a test waited for did not come. No assertion: such a test may be run once more (`support.gate`)."""


class KeptConnection:
    """A connection to the database that was asked last, kept for the next question.

    Tests ask many times a second until something holds. A new connection each time would cost more than all else.
    """

    def __init__(self) -> None:
        self._database = ""
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def query(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        if not self._lock.acquire(blocking=False):  # another thread asks, and may have to wait
            with psycopg.connect(database, autocommit=True) as connection:
                return _rows(connection, statement)
        try:
            if self._connection is not None and self._database == database:
                try:
                    return _rows(self._connection, statement)
                except psycopg.OperationalError:
                    if not self._connection.closed:
                        raise
            self.close()
            self._connection = psycopg.connect(database, autocommit=True, prepare_threshold=None)
            self._database = database
            return _rows(self._connection, statement)
        finally:
            self._lock.release()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_kept = KeptConnection()


def _rows(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    cursor = connection.execute(statement)  # type: ignore[call-overload]
    # A statement's rows may have no columns; only its status tells them from none.
    has_rows = cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK
    return cursor.fetchall() if has_rows else []


class Process:
    """A harvester as a process of its own, and the events it writes."""

    def __init__(
        self,
        command: list[str],
        *,
        first_line: dict[str, Any] | None = None,
        log: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        """`log` is where its stderr goes; with the test's own unless given."""
        self.log = log
        with contextlib.ExitStack() as stack:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if log is None else stack.enter_context(log.open("w")),
                text=True,
                start_new_session=True,
                env=None if environment is None else {**os.environ, **environment},
            )
        self.events: list[dict[str, Any]] = []
        if first_line is not None:
            self.tell(first_line)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, line: dict[str, Any]) -> None:
        """Write a line to its stdin."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(line) + "\n")
        self.popen.stdin.flush()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.endswith("\n"):  # one that is killed may be amid a line
                self.events.append(json.loads(line))

    @property
    def newest_progress(self) -> dict[str, Any]:
        """Its last `progress`; empty before the first."""
        return next((event for event in reversed(self.events) if event["event"] == "progress"), {})

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The errors that have ended a term. Others are complaints of Kafka's clients: a busy machine causes some."""
        return [event for event in self.events if event["event"] == "error" and event.get("retry_in") is not None]

    def own_views(self, *, since: int = 0) -> int:
        """How many views it has begun, beyond those for which the group has elected it: failures and rivals lead to
        these, but not a busy machine. `since`: it had announced so many events before.
        """
        events = [event["event"] for event in self.events[since:]]
        return events.count("view") - events.count("elected")

    @property
    def was_unseated(self) -> bool:
        """Whether a busy machine has kept its heartbeats from it, or it from the group, for so long that it stepped
        down, for a moment.
        """
        reasons = [event["reason"] for event in self.events if event["event"] == "stood_by"]
        beginnings = (
            "no heartbeat was read back",
            "the group has not heard",
            "Kafka's client of the election has failed",
        )
        return any(reason.startswith(beginnings) for reason in reasons)

    def wait_for(self, event: str, *, within: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def happened() -> bool:
            found[:] = [seen for seen in self.events if seen["event"] == event and fields.items() <= seen.items()]
            return bool(found)

        wait_until(happened, within=within, doing=f"waiting for {event}: {self.events}")
        return found[0]

    def end(self) -> None:
        """Make sure that it is gone, and close its pipes."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        self._reader.join(PATIENCE)
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()

    def ends(self, *, within: float = PATIENCE) -> float:
        """Wait for the end, and return how many seconds it took."""
        started = time.monotonic()
        try:
            self.popen.wait(within)
        except subprocess.TimeoutExpired:
            raise PatienceExhaustedError(f"not within {within:g} s: its end. It told {self.events[-20:]}") from None
        self._reader.join(PATIENCE)
        return time.monotonic() - started


def wait_until(
    condition: Callable[[], object], *, within: float = PATIENCE, doing: str | Callable[[], str] = ""
) -> float:
    """Wait until something holds; the seconds it took. Fails after `within` seconds, with what was waited for."""
    begun = time.monotonic()
    while True:
        is_last = time.monotonic() - begun > within  # before it asks: a test that is held up asks once more
        if condition():
            return time.monotonic() - begun
        if is_last:
            raise PatienceExhaustedError(f"not within {within:g} s: {doing() if callable(doing) else doing}")
        time.sleep(0.02)
