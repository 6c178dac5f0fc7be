"""An outbox that is published to two clusters, and a real consumer group that moves between them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from faults import moving_reader
from faults.test_several_clusters import TwoClusters
from support.harvesting import PATIENCE, Process, make_topic, wait_until

from airflow_outbox.cli import main
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.harvest.positions_process import COMMAND
from airflow_outbox.positions.operating import why_it_may_not_move
from airflow_outbox.positions.replicator import Replicator
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.table import OutboxTable

NAMES = ("primary", "backup")
READ = 3
"""The first partitions: the keys of the tests' records are in these."""


@dataclass(slots=True)
class Reader:
    """A member of the group on one cluster, and the values that it has read."""

    process: subprocess.Popen[str]
    output: Path

    def values(self) -> list[int]:
        return [int(line) for line in self.output.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def ends(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(PATIENCE)


@dataclass(slots=True)
class Moving:
    """An outbox that is published to two clusters, and a group that reads on one of them at a time."""

    clusters: TwoClusters
    group: str
    folder: Path
    protocol: str = "classic"
    session: int = 60
    """Seconds after which the group misses a reader that is silent; a busy machine may hold it up."""
    readers: list[Reader] = field(default_factory=list)

    def reader(self, cluster: str) -> Reader:
        outbox = self.clusters.outbox if cluster == "primary" else self.clusters.backup
        output = self.folder / f"{len(self.readers)}.txt"
        given = [outbox.bootstrap, outbox.topic, self.group, self.protocol, str(self.session)]
        command = [sys.executable, moving_reader.__file__, *given]
        with output.open("w") as file:
            reader = Reader(subprocess.Popen(command, stdout=file, text=True), output)
        self.readers.append(reader)
        return reader

    def read(self) -> list[int]:
        """All values, in the order of the readers."""
        return [value for reader in self.readers for value in reader.values()]

    def reads_all(self) -> None:
        """The group has read every record that was stashed."""
        wait_until(lambda: len(set(self.read())) == self.clusters.stashed, doing=self._missing)

    def read_again(self) -> int:
        return sum(count - 1 for count in Counter(self.read()).values())

    def may_move(self, replicator: Replicator, target: str) -> None:
        """Wait until the group's position is on the other cluster."""
        reasons = [""]

        def is_there() -> bool:
            reasons[0] = why_it_may_not_move(self.group, replicator.look(commits=False), target) or ""
            return not reasons[0]

        wait_until(is_there, doing=lambda: f"{reasons[0]}: {self.clusters.members[-1].events[-5:]}")

    def may_move_soon(self, target: str) -> None:
        """Wait for the same, as a sensor does: in a process of its own, for Kafka's client may crash while a broker
        that was killed comes back.
        """
        line = {"config": self.clusters.outbox.settings, "watch": {"group": self.group, "to": target}}
        started: list[Process] = []

        def is_there() -> bool:
            if not started or started[-1].popen.poll() is not None:
                started.append(Process([*COMMAND], first_line=line))
            return any(each["event"] == "may_move" and each["reason"] is None for each in started[-1].events)

        try:
            wait_until(is_there, doing=lambda: f"{started[-1].events}: {self.clusters.members[-1].events[-5:]}")
        finally:
            for process in started:
                process.end()

    def may_follow(self, replicator: Replicator, cluster: str) -> None:
        """Wait until a cluster has the position of the group, which goes on reading where it is."""

        def is_there() -> bool:
            news = replicator.look(commits=False).groups.get(self.group)
            return news is not None and news.decision.home is not None and not news.decision.commits.get(cluster)

        wait_until(is_there, doing=lambda: str(self.clusters.members[-1].events[-5:]))

    def wipe(self, cluster: str) -> None:
        """Delete the topics of the outbox on a cluster, and make them again."""
        config = self.clusters.config
        own = config.by_cluster()[cluster]
        with closing(OutboxTable(connect(config.data_source, purpose="test"), config.name)) as table:
            names = KafkaNames.of(config, table.identity().outbox_id)
        topics = [self.clusters.outbox.topic, names.ledger_topic, names.extents_topic]
        admin = AdminClient({**own.kafka})
        for deleted in admin.delete_topics(topics).values():
            deleted.result()
        wait_until(lambda: not {*topics} & admin.list_topics(timeout=PATIENCE).topics.keys())
        make_topic({**own.kafka}, self.clusters.outbox.topic)
        make_internal_topics(config, names)

    def seen(self) -> list[str]:
        """The groups that the replicator shows on the page."""
        found = self.clusters.outbox.query("SELECT groups FROM outbox_positions ORDER BY told_at DESC LIMIT 1")
        return [group["group"] for [groups] in found for group in groups]

    def has_committed_all(self, cluster: str) -> bool:
        """Whether the group has committed on a cluster that it has read all that is there."""
        outbox = self.clusters.outbox if cluster == "primary" else self.clusters.backup
        ends = [0] * READ
        for message in outbox.committed():
            ends[message.partition() or 0] = (message.offset() or 0) + 1
        return all(offset >= end for offset, end in zip(self.offsets(cluster), ends, strict=True))

    def offsets(self, cluster: str) -> list[int]:
        """What the group has committed on a cluster."""
        with self._client(cluster) as consumer:
            return [each.offset for each in consumer.committed(self._partitions(), timeout=PATIENCE)]

    def reset(self, cluster: str, offset: int) -> None:
        """Commit an offset in all partitions of a group without members, as an operator does."""
        with self._client(cluster) as consumer:
            consumer.commit(offsets=self._partitions(offset), asynchronous=False)

    def run(self, command: str, *arguments: str, answer: str | None = None) -> str:
        """Run `airflow-outbox positions …`, and return what it says."""
        file = self.folder / "outbox.yaml"
        file.write_text(yaml.safe_dump(self.clusters.outbox.settings))
        done = CliRunner().invoke(main, ["positions", command, "-f", str(file), *arguments], input=answer)
        assert done.exit_code == 0, done.output
        return done.output

    def _client(self, cluster: str) -> closing[Consumer]:
        bootstrap = (self.clusters.outbox if cluster == "primary" else self.clusters.backup).bootstrap
        return closing(Consumer({"bootstrap.servers": bootstrap, "group.id": self.group, "enable.auto.commit": False}))

    def _partitions(self, offset: int = -1001) -> list[TopicPartition]:
        return [TopicPartition(self.clusters.outbox.topic, n, offset) for n in range(READ)]

    def _missing(self) -> str:
        missing = sorted(set(range(self.clusters.stashed)) - set(self.read()))
        return f"{len(missing)} of {self.clusters.stashed} are missing: {missing[:10]}"
