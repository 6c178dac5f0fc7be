"""MirrorMaker 2 in its dedicated mode: a process that copies topics and groups' offsets from a cluster to another."""

from __future__ import annotations

from pathlib import Path

from airflow_outbox.demo.embedded.jars import KAFKA_VERSION, fetched_jars
from airflow_outbox.demo.embedded.java import find_java
from benchmarks.peers import connect
from benchmarks.peers.processes import Child
from benchmarks.peers.servers import JARS

_PACKAGES = (f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}", *connect.PACKAGES)
_START_SECONDS = 120.0
_OWN_TOPICS = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
_STORES = ("offset.storage", "status.storage", "config.storage")


def fetch() -> Path:
    """Fetch its jars where they are missing (about a minute). Raises JarsMissingError, JavaMissingError."""
    return fetched_jars(JARS, f"mirror-{KAFKA_VERSION}", _PACKAGES, needed=["connect-mirror", "connect-runtime"])


def started(folder: Path, *, source: str, target: str, topic: str, groups: str) -> Child:
    """Start it, from the brokers `source` to the brokers `target`, with all its intervals at their least and the topic
    under its own name. Raises ContenderError when it does not come up.
    """
    jars = fetch()
    settings = {
        "clusters": "east, west",
        "east.bootstrap.servers": source,
        "west.bootstrap.servers": target,
        "east->west.enabled": "true",
        "west->east.enabled": "false",
        "topics": topic,
        "groups": groups,
        "groups.exclude": "",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "replication.factor": "1",
        **{f"{name}.replication.factor": "1" for name in (*_OWN_TOPICS, *_STORES)},
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "refresh.topics.interval.seconds": "1",
        "offset.lag.max": "0",
        "offset.flush.interval.ms": "1000",
        "emit.heartbeats.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "consumer.isolation.level": "read_committed",
        "consumer.auto.offset.reset": "earliest",
        "tasks.max": "1",
    }
    file, logging = folder / "mirror.properties", folder / "mirror-log4j2.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    logging.write_text(connect.LOG_SETTINGS)
    java = [str(find_java()), *connect.HEAP, f"-Dlog4j2.configurationFile={logging.as_uri()}", "-cp", f"{jars}/*"]
    child = Child([*java, "org.apache.kafka.connect.mirror.MirrorMaker", str(file)], log=folder / "mirror.log")
    child.wait_for("Kafka MirrorMaker started", within=_START_SECONDS)
    return child
