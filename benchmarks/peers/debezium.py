"""Debezium's Postgres connector with the outbox router, in Kafka Connect, over its own table.

It reads the log of Postgres and never deletes its rows. A turn starts it and lets it publish some rows of another
topic, so that it has a slot and knows its place in the log. It is stopped while the backlog is loaded. Then it goes on
in a new Java process, like all others; or, where it is to be warm, in its first one, whose code is compiled by then.

Connect is standalone, which publishes at least once; or distributed, where the connector is to publish exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from psycopg.conninfo import conninfo_to_dict

from benchmarks.peers.connect import Connect
from benchmarks.peers.contender import Contender, Turn
from benchmarks.peers.processes import Child, ContenderError
from benchmarks.peers.rows import OUTBOX_EVENT, SHAPES
from benchmarks.peers.servers import Workspace

TABLE = """
CREATE TABLE outboxevent (
    id UUID PRIMARY KEY, aggregatetype VARCHAR(255) NOT NULL, aggregateid VARCHAR(255) NOT NULL,
    type VARCHAR(255) NOT NULL, payload TEXT
)
"""
TUNED = {
    "max.batch.size": 20480,
    "max.queue.size": 81920,
    "poll.interval.ms": 50,
    "producer.override.compression.type": "lz4",
    "producer.override.linger.ms": 5,
    "producer.override.batch.size": 262144,
}
"""Settings that make it publish a backlog faster."""
SOON = {"poll.interval.ms": 10}
"""Settings that make it publish a record sooner."""
EXACTLY_ONCE = {"exactly.once.support": "required", "transaction.boundary": "poll"}
"""Settings with which each batch that Connect gets from it is a Kafka transaction, with its place in the log."""
_WARM_UP_ROWS = 2000
_START_SECONDS = 60.0
_STREAMING = "Starting streaming"


class Debezium(Contender):
    """`settings` are the connector's, beside those that it requires."""

    layout = OUTBOX_EVENT
    timed_from = f"its line '{_STREAMING}'"
    wakes = "Postgres streams its log to it; it hands on what has come every poll.interval.ms"

    def __init__(self, name: str, settings: Mapping[str, object] | None = None, *, is_warm: bool = False) -> None:
        super().__init__(name, settings)
        self._is_warm = is_warm

    @contextmanager
    def turn(self, workspace: Workspace) -> Iterator[Turn]:
        warm_up_topic = f"{workspace.topic}-warm-up"
        workspace.make_topic(warm_up_topic)
        turn = _DebeziumTurn(workspace, {**_connector(workspace), **self.settings})
        try:
            with psycopg.connect(workspace.dsn, autocommit=True) as connection:
                connection.execute(TABLE)
                turn.begin()
                OUTBOX_EVENT.write(connection, SHAPES["keys"], warm_up_topic, range(_WARM_UP_ROWS))
                _wait_until_published(workspace.bootstrap, warm_up_topic)
                turn.pause(keep_process=self._is_warm)
                connection.execute("TRUNCATE outboxevent")
            yield turn
        finally:
            turn.end()


def _connector(workspace: Workspace) -> dict[str, object]:
    server = conninfo_to_dict(workspace.dsn)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": 1,
        "database.hostname": server["host"],
        "database.port": server["port"],
        "database.user": server["user"],
        "database.password": server["password"],
        "database.dbname": server["dbname"],
        "topic.prefix": f"{workspace.topic}-debezium",
        "plugin.name": "pgoutput",
        "slot.name": workspace.topic,
        "publication.name": workspace.topic,
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.outboxevent",
        "snapshot.mode": "no_data",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.route.topic.replacement": "${routedByValue}",
    }


def _wait_until_published(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partition, deadline = TopicPartition(topic, 0), time.monotonic() + _START_SECONDS
    while admin.list_offsets({partition: OffsetSpec.latest()})[partition].result().offset < _WARM_UP_ROWS:  # type: ignore[no-untyped-call]
        if time.monotonic() > deadline:
            raise ContenderError(f"Debezium has not published {_WARM_UP_ROWS} rows within {_START_SECONDS:g} s")
        time.sleep(0.1)


class _DebeziumTurn(Turn):
    def __init__(self, workspace: Workspace, connector: Mapping[str, object]) -> None:
        self._workspace = workspace
        self._connector = connector
        self._connect: Connect | None = None
        self._begun = 0.0

    def begin(self) -> Child:
        asked = time.monotonic()
        if self._connect is None:
            self._connect = Connect(self._workspace, exactly_once="exactly.once.support" in self._connector)
            self._connect.run(self._connector)
        else:
            self._connect.resume()
        self._begun, _ = self._connect.child.wait_for(_STREAMING, within=_START_SECONDS, after=asked)
        return self._connect.child

    def begun(self) -> float:
        return self._begun

    def pause(self, *, keep_process: bool) -> None:
        """Stop it, after it has noted how far it is."""
        assert self._connect is not None
        self._connect.stop()
        if not keep_process:
            self.end()

    def end(self) -> None:
        if self._connect is not None:
            self._connect.child.end()
            self._connect = None
