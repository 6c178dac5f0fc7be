"""What tests of harvesting share: an outbox that is ready to be harvested, and harvesters as processes of their own."""

from __future__ import annotations

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
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable

PARTITIONS = 4
PATIENCE = 60.0
"""Seconds that a test waits for what has to come, where how soon it comes is not what the test shows."""
BUSY = 0.5
"""Seconds that a busy machine may add to a time that is measured."""
SHORT_SESSION = {"heartbeat_timeout": 1, "session_timeout": 3}
"""Limits by which a successor leads soon after a leader was killed; the brokers of the tests allow them."""
COMMAND = [str(Path(sys.executable).with_name("airflow-outbox"))]
CHILD = [sys.executable, "-m", "airflow_outbox.harvest"]
GOHARVEST_TABLE = """
CREATE TABLE {} (
    id BIGSERIAL PRIMARY KEY, create_time TIMESTAMP WITH TIME ZONE NOT NULL, kafka_topic VARCHAR(249) NOT NULL,
    kafka_key VARCHAR(100) NOT NULL, kafka_value VARCHAR(10000), kafka_header_keys TEXT[] NOT NULL,
    kafka_header_values TEXT[] NOT NULL, leader_id UUID
)
"""
AS_OF_VERSION_4 = """
DROP VIEW outbox_published;
DROP TABLE outbox_state, outbox_ledger;
ALTER TABLE outbox_shard RENAME TO outbox_leader;
ALTER TABLE outbox_leader
    DROP COLUMN begun_view, DROP COLUMN secret, DROP COLUMN published_at, ALTER COLUMN incarnation SET DEFAULT 1,
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
DROP TABLE outbox_trouble;
ALTER TABLE outbox_parked ALTER COLUMN kafka_key SET NOT NULL;
ALTER TABLE outbox DROP CONSTRAINT headers_have_one_dimension, DROP CONSTRAINT id_can_be_read;
UPDATE outbox_leader SET schema_version = 4, transactional_id = 'the only one'
"""
"""Takes from a new outbox what schema versions 5 to 8 have added; the triggers against loaded rows stay."""


@dataclass(slots=True)
class Outbox:
    """An outbox with one data topic, ready to be harvested."""

    database: str
    bootstrap: str
    topic: str
    settings: dict[str, Any] = field(default_factory=dict)

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
        with psycopg.connect(self.database, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            # A statement's rows may have no columns; only its status tells them from none.
            has_rows = cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK
            return cursor.fetchall() if has_rows else []

    def published(self) -> list[tuple[str, int]]:
        """Key and number of every record in the topic, each key's in the order in which a consumer sees them."""
        return [(message.key().decode(), int(message.value())) for message in self.committed()]

    def written(self) -> int:
        """How many messages the topic's log has, markers and all, whatever consumers see of them."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "unused"})
        try:
            partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
            return sum(consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions)
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
            partitions = [TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)]
            ends = [consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions]
            consumer.assign(partitions)
            found: list[Message] = []
            unread = set(range(PARTITIONS))
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


def make_outbox(database: str, *, bootstrap: str, topic: str, **settings: Any) -> Outbox:
    """Make the tables, the data topic and the internal topics, for a configuration with these settings, too."""
    settings = {"data_source": database, "kafka": {"bootstrap.servers": bootstrap}, **settings}
    outbox = Outbox(database, bootstrap, topic, settings)
    config = HarvestConfig.validated(outbox.settings, source="test")
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, config.name)
        identity = OutboxTable(connection, config.name).identity()
    make_internal_topics(config, KafkaNames.of(config, identity.outbox_id))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(outbox.topic, PARTITIONS, 1)])[outbox.topic].result()
    return outbox


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
            self.events.append(json.loads(line))

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
        self._reader.join(10)
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()

    def ends(self, *, within: float = PATIENCE) -> float:
        """Wait for the end, and return how many seconds it took."""
        started = time.monotonic()
        self.popen.wait(within)
        self._reader.join(PATIENCE)
        return time.monotonic() - started


def wait_until(
    condition: Callable[[], object], *, within: float = PATIENCE, doing: str | Callable[[], str] = ""
) -> float:
    """Wait until something holds; the seconds it took. Fails after `within` seconds, with what was waited for."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > within:
            raise AssertionError(f"not within {within:g} s: {doing() if callable(doing) else doing}")
        time.sleep(0.02)
    return time.monotonic() - begun
