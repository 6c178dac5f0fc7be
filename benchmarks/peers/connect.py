"""Kafka Connect with Debezium's Postgres connector: its jars, its process, and its control by HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_outbox.demo.embedded.jars import KAFKA_VERSION, fetched_jars
from airflow_outbox.demo.embedded.java import find_java
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from benchmarks.peers.processes import Child, ContenderError
from benchmarks.peers.servers import JARS, Workspace

DEBEZIUM_VERSION = "3.7.0.Final"
_CONNECTOR = (
    f"io.debezium:debezium-connector-postgres:{DEBEZIUM_VERSION}",
    "com.fasterxml.jackson.core:jackson-annotations:2.21",  # an undeclared need of its jackson-databind
)
PACKAGES = (
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
LOG_SETTINGS = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %-5p %m (%c{1})%n
"""
HEAP = ("-Xms256m", "-Xmx2g")  # as Kafka's own script starts it
_START_SECONDS = 90.0
_CONNECTOR_NAME = "outbox"
_STRING_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"


def fetch() -> None:
    """Fetch its jars where they are missing (about a minute). Raises JarsMissingError, JavaMissingError."""
    _jars()


def _jars() -> tuple[Path, Path]:
    """The folders of Connect's jars and of the connector's, a plugin."""
    connect = fetched_jars(JARS, f"connect-{KAFKA_VERSION}", PACKAGES, needed=["connect-runtime", "connect-json"])
    name = f"debezium-{DEBEZIUM_VERSION}"
    return connect, fetched_jars(
        JARS, name, _CONNECTOR, needed=["debezium-connector-postgres", "debezium-connect-plugins"]
    )


class Connect:
    """A running worker. A connector has a name where there are several."""

    def __init__(
        self, workspace: Workspace, settings: Mapping[str, str] | None = None, *, exactly_once: bool = False
    ) -> None:
        """`settings` are the worker's, beside those that it needs. One that can publish exactly once is distributed,
        others are standalone. Raises ContenderError when it does not come up.
        """
        connect, plugin = _jars()
        plugins = workspace.folder / "plugins"  # a folder of folders
        if not plugins.exists():
            plugins.mkdir()
            (plugins / "debezium").symlink_to(plugin)
        self._port = free_port()
        worker = {
            "bootstrap.servers": workspace.bootstrap,
            "key.converter": _STRING_CONVERTER,
            "value.converter": _STRING_CONVERTER,
            "listeners": f"http://{LOOPBACK}:{self._port}",
            "plugin.path": str(plugins),
            **(_of_a_group(workspace) if exactly_once else _of_its_own(workspace)),
            **(settings or {}),
        }
        file, logging = workspace.folder / "connect.properties", workspace.folder / "log4j2.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in worker.items()))
        logging.write_text(LOG_SETTINGS)
        java = [str(find_java()), *HEAP, f"-Dlog4j2.configurationFile={logging.as_uri()}", "-cp", f"{connect}/*"]
        main = f"org.apache.kafka.connect.cli.Connect{'Distributed' if exactly_once else 'Standalone'}"
        self.child = Child([*java, main, str(file)], log=workspace.folder / "connect.log")
        self.child.wait_for("Kafka Connect started", within=_START_SECONDS)

    def run(self, settings: Mapping[str, object], *, name: str = _CONNECTOR_NAME) -> None:
        """Start a connector."""
        self._ask("PUT", "config", settings, name=name)

    def stop(self, *, name: str = _CONNECTOR_NAME) -> None:
        """Stop the connector and wait until it has ended; it keeps its workspace."""
        self._ask("PUT", "stop", name=name)
        self._wait_until("STOPPED", name=name)

    def pause(self, *, name: str = _CONNECTOR_NAME) -> None:
        """Let the connector and its task stay as they are, and wait until they do."""
        self._ask("PUT", "pause", name=name)
        self._wait_until("PAUSED", name=name)

    def _wait_until(self, state: str, *, name: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            status = self._ask("GET", "status", name=name)
            if {status["connector"]["state"], *(task["state"] for task in status["tasks"])} == {state}:
                return
            if time.monotonic() > deadline:
                raise ContenderError(f"the connector did not get {state}")
            time.sleep(0.1)

    def resume(self, *, name: str = _CONNECTOR_NAME) -> None:
        """Let a stopped connector go on."""
        self._ask("PUT", "resume", name=name)

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None, *, name: str) -> Any:
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self._port}/connectors/{name}/{path}",
            method=method,
            data=None if body is None else json.dumps({key: str(value) for key, value in body.items()}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_START_SECONDS) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            raise ContenderError(f"Kafka Connect refuses {method} {path}: {error.read().decode()}") from error


def _of_its_own(workspace: Workspace) -> dict[str, str]:
    """The settings of a standalone worker."""
    return {"offset.storage.file.filename": str(workspace.folder / "connect.offsets")}


def _of_a_group(workspace: Workspace) -> dict[str, str]:
    """The settings of the only worker of a group, on a cluster of one broker."""
    group = f"{workspace.topic}-connect"
    topics = {f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("config", "offset", "status")}
    copies = {f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")}
    return {"group.id": group, "exactly.once.source.support": "enabled", **topics, **copies}
