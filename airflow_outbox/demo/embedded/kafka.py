"""A real Kafka broker of one node, embedded: broker and KRaft controller in one process on 127.0.0.1."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from airflow_outbox.demo.embedded.class_archives import java_options, kafka_archive
from airflow_outbox.demo.embedded.java import find_java
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.process import ServerError, ServerProcess

START_SECONDS = 180.0  # on a machine that is busy with much else
_CHECKPOINTS: dict[str, bytes] = {}
"""The first records of new storage, by classpath."""
_LOG_SETTINGS = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %m (%c{1})%n
"""


class EmbeddedKafka:
    """A broker with its data, settings and log (`kafka.log`) in `folder`, where they stay when it ends.

    As a context manager it starts on entry and stops on exit. It keeps its port over `restart()`, and dies with the
    process that started it. Topics are made only on request.

    `joins` is a running broker to form one cluster with; its controller then serves this broker, too.

    `classpath` is what `jars.kafka_jars` returns. `port` is a free one unless given. `properties` are added to
    `server.properties` and win over the ones here. `heap` is the Java heap as `-Xmx` takes it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        classpath: str,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
        joins: EmbeddedKafka | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.log = self.folder / "kafka.log"
        self.port = port or free_port()
        self._controller_port = free_port()
        self._extra = {**({} if joins is None else self._as_second(joins)), **(properties or {})}
        self._cluster_id: str = _new_id() if joins is None else joins._cluster_id
        # Compression libraries are unpacked to be loaded, and stay there when the broker is killed.
        self._unpacked = self.folder / "unpacked"
        self._classpath = classpath
        self._java = [
            *(str(find_java()), f"-Xmx{heap}", f"-Djava.io.tmpdir={self._unpacked}"),
            *java_options(kafka_archive(classpath)),
            *("-cp", classpath),
        ]
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers`: `127.0.0.1:PORT`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The broker's process id. Raises `ServerError` when it does not run."""
        return self._started().pid

    def start(self) -> Self:
        """Start the broker (format its storage first if that is new) and wait until it answers (about 3 s).

        Raises `ServerError` with the end of its log when it does not come up within three minutes.
        """
        if self._process is not None and self._process.running:
            return self
        self._unpacked.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "server.properties"
        settings.write_text(_as_properties(self._settings()))
        logging = self.folder / "log4j2.properties"
        logging.write_text(_LOG_SETTINGS)
        if not self._meta.exists():
            self._format(settings)
        self._process = ServerProcess(
            [*self._java, f"-Dlog4j2.configurationFile={logging.as_uri()}", "kafka.Kafka", str(settings)],
            name="Kafka",
            log=self.log,
            abandon_signal=signal.SIGKILL,
        )
        self._process.wait_until(self._answers, timeout=START_SECONDS)
        return self

    def stop(self) -> None:
        """Shut the broker down gracefully, also a paused one. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM)
            self._process = None

    def kill(self) -> None:
        """End the broker with SIGKILL, as a crash would. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.stop(signal.SIGKILL)
            self._process = None

    def restart(self) -> None:
        """Stop the broker, if it runs, and start it in the same folder and at the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the broker's process (SIGSTOP): its connections stay open and nothing answers."""
        self._started().send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused broker continue."""
        self._started().send(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _settings(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{LOOPBACK}:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "metadata.max.idle.interval.ms": "0",  # the controller writes nothing while nothing happens
            # By settings and not in the storage, so that the same folder may be served at another port.
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._controller_port}",
            # A broker that was killed may register again only when its former session has ended.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "8",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "8",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self._extra,
        }

    def _as_second(self, first: EmbeddedKafka) -> dict[str, str]:
        return {
            "process.roles": "broker",
            "node.id": "2",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": first._settings()["controller.quorum.voters"],
        }

    @property
    def _meta(self) -> Path:
        return self.folder / "data" / "meta.properties"

    def _format(self, settings: Path) -> None:
        """Make new storage. Kafka's tool for that takes half as long as a broker's start, so it is run once a process.
        Storage of the same release differs by the ids of cluster, node and folder only.
        """
        if self._classpath not in _CHECKPOINTS:
            self._run_the_formatter(settings)
            _CHECKPOINTS[self._classpath] = self._meta.with_name("bootstrap.checkpoint").read_bytes()
            return
        self._meta.parent.mkdir()
        self._meta.with_name("bootstrap.checkpoint").write_bytes(_CHECKPOINTS[self._classpath])
        ids = {"cluster.id": self._cluster_id, "node.id": self._settings()["node.id"], "directory.id": _new_id()}
        self._meta.write_text(_as_properties({"version": "1", **ids}))

    def _run_the_formatter(self, settings: Path) -> None:
        formatting = subprocess.run(
            [
                *self._java,
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={self._cluster_id}",
                "-c",
                str(settings),
                "-g",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd="/",
        )
        if formatting.returncode != 0:
            raise ServerError(f"Kafka's storage could not be formatted:\n{formatting.stdout.strip()}")

    def _answers(self) -> bool:
        # Silent: until the broker listens, the client would print that it can't connect.
        client = AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.connection.setup.timeout.ms": 2000}
        )
        try:
            return bool(client.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False

    def _started(self) -> ServerProcess:
        if self._process is None or not self._process.running:
            raise ServerError("Kafka is not running. Start it first.")
        return self._process


def _new_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _as_properties(settings: Mapping[str, str]) -> str:
    r"""Settings in Java's format: every character outside ASCII, and the backslash, is written as \uXXXX."""
    return "".join(f"{name}={_escaped(value)}{os.linesep}" for name, value in settings.items())


def _escaped(value: str) -> str:
    units = value.encode("utf-16-be")
    codes = (int.from_bytes(units[place : place + 2]) for place in range(0, len(units), 2))
    return "".join(chr(code) if 32 <= code < 127 and code != ord("\\") else f"\\u{code:04x}" for code in codes)
