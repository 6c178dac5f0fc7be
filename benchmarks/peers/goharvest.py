"""goharvest: its reaper, built elsewhere, over its own table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
import yaml
from psycopg.conninfo import make_conninfo

from benchmarks.peers.contender import Contender, Turn
from benchmarks.peers.processes import Child
from benchmarks.peers.rows import OUTBOX
from benchmarks.peers.servers import Workspace

TABLE = """
CREATE TABLE outbox (
    id BIGSERIAL PRIMARY KEY, create_time TIMESTAMP WITH TIME ZONE NOT NULL, kafka_topic VARCHAR(249) NOT NULL,
    kafka_key VARCHAR(100) NOT NULL, kafka_value VARCHAR(10000), kafka_header_keys TEXT[] NOT NULL,
    kafka_header_values TEXT[] NOT NULL, leader_id UUID
)
"""
BEST_LIMITS = {"markQueryRecords": 1000, "maxInFlightRecords": 10_000}
"""The limits that published a backlog fastest in a sweep."""
_ELECTION_SECONDS = 60.0


class Goharvest(Contender):
    """`REAPER -f FILE`; `settings` are its limits, otherwise its own defaults."""

    layout = OUTBOX
    timed_from = "its line 'Elected as leader'"
    wakes = "it asks Postgres 10 ms after it found nothing (markBackoff)"
    one_at_a_time = True

    def __init__(self, name: str, reaper: Path, limits: Mapping[str, object] | None = None) -> None:
        super().__init__(name, limits)
        self._reaper = reaper.resolve()

    @contextmanager
    def turn(self, workspace: Workspace) -> Iterator[Turn]:
        with psycopg.connect(workspace.dsn, autocommit=True) as connection:
            connection.execute(TABLE)
        leader_topic = f"{workspace.topic}-leader"  # goharvest doesn't make it
        workspace.make_topic(leader_topic)
        harvest = {
            "baseKafkaConfig": {"bootstrap.servers": workspace.bootstrap},
            "leaderTopic": leader_topic,
            "leaderGroupID": leader_topic,
            "dataSource": make_conninfo(workspace.dsn, sslmode="disable"),
            "outboxTable": "outbox",
            "limits": self.settings,
        }
        file = workspace.folder / "reaper.yaml"
        file.write_text(yaml.safe_dump({"harvest": harvest, "logging": {"level": "Info"}}))
        turn = _GoharvestTurn(self._reaper, file, workspace)
        try:
            yield turn
        finally:
            turn.end()


class _GoharvestTurn(Turn):
    def __init__(self, reaper: Path, file: Path, workspace: Workspace) -> None:
        self._reaper = reaper
        self._file = file
        self._workspace = workspace
        self._child: Child | None = None
        self._begun = 0.0

    def begin(self) -> Child:
        self._child = Child([self._reaper, "-f", self._file], log=self._workspace.folder / "goharvest.log")
        self._begun, _ = self._child.wait_for("Elected as leader", within=_ELECTION_SECONDS)
        return self._child

    def begun(self) -> float:
        return self._begun

    def end(self) -> None:
        if self._child is not None:
            self._child.end()
