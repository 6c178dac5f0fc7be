"""The servers of a benchmark, and a workspace on them for each turn: a database and a topic that nobody has used."""

from __future__ import annotations

import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psycopg
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.demo.embedded.process import ServerError

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".dev" / "jars"
PARTITIONS = 4
KAFKA_HEAP = "1g"
_LEADER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Workspace:
    """A turn's own servers: an empty database, an empty topic, and a folder."""

    dsn: str
    bootstrap: str
    topic: str
    """Also the name of the database."""
    folder: Path
    """For configuration and logs."""

    def make_topic(self, name: str, *, partitions: int = 1) -> None:
        """Make a topic of the turn's own, and wait until its partitions have leaders. Raises ServerError."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        asked = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}  # type: ignore[no-untyped-call]
        deadline = time.monotonic() + _LEADER_SECONDS
        while any(found.exception() for found in admin.list_offsets(asked, request_timeout=30).values()):
            if time.monotonic() > deadline:
                raise ServerError(f"the topic {name} has no leaders")
            time.sleep(0.05)


class BenchServers:
    """Postgres with default settings except `wal_level=logical`, which Debezium needs, and Kafka; both on 127.0.0.1."""

    def __init__(self, folder: Path, postgres: EmbeddedPostgres, kafka: EmbeddedKafka) -> None:
        self.folder = folder
        self.postgres = postgres
        self.kafka = kafka
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        self._numbers = itertools.count(1)

    @classmethod
    @contextmanager
    def started(
        cls,
        settings: Mapping[str, str] | None = None,
        *,
        kafka_port: int | None = None,
        kafka_properties: Mapping[str, str] | None = None,
    ) -> Iterator[Self]:
        """New servers. They and their data go on exit, and at SIGTERM. `settings` are Postgres's."""
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        with ExitStack() as stack:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-outbox-bench-", dir="/var/tmp"))
            )
            folder.chmod(0o755)
            settings = {"wal_level": "logical", **(settings or {})}
            postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres", settings=settings))
            kafka = EmbeddedKafka(
                folder / "kafka",
                classpath=kafka_jars(JARS),
                heap=KAFKA_HEAP,
                port=kafka_port,
                properties=kafka_properties,
            )
            yield cls(folder, postgres, stack.enter_context(kafka))

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        """An empty database and an empty topic. On exit both go, with everything else made in Kafka meanwhile."""
        name = f"turn_{next(self._numbers)}"
        known = self._topics()
        folder = self.folder / name
        folder.mkdir()
        dsn = self.postgres.create_database(name)
        try:
            workspace = Workspace(dsn, self.kafka.bootstrap, name, folder)
            workspace.make_topic(name, partitions=PARTITIONS)
            yield workspace
        finally:
            self._drop_slots(name)
            self.postgres.drop_database(name)
            for gone in self._admin.delete_topics(sorted(self._topics() - known)).values():
                gone.result(30)

    def _topics(self) -> set[str]:
        return {topic for topic in self._admin.list_topics(timeout=30).topics if not topic.startswith("__")}

    def _drop_slots(self, database: str) -> None:
        with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE database = %s",
                (database,),
            )
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (database,)
            )
