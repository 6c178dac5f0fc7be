"""How fast a backlog is harvested while a cluster gets what it has missed: part of `./dev bench clusters`.

One harvester, two clusters, of which the backup is detached. It publishes a backlog; that is the rate before. Then the
backup is asked for again, which misses all of that, and the same backlog comes once more. All of it has to be out
before the backup counts, or the turn says for which part it was caught up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from airflow_outbox.operate.clusters import request_attach, request_detach
from airflow_outbox.postgres.membership import read_membership
from airflow_outbox.postgres.names import OutboxName
from benchmarks.peers.outbox import COMMAND, AirflowOutbox
from benchmarks.peers.processes import Child, ContenderError
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.servers import BenchServers, Workspace

LEAST_SHARE = 0.5
"""The target: of the rate before."""
_START_SECONDS = 30.0
_LOOK_INTERVAL = 0.05
_WRITTEN_TOGETHER = 10_000  # rows
_HEARD_SECONDS = 1.5
"""After which the leader has heard what an operator asks for."""
_BACKLOGS_BEFORE = 2
"""The first one warms up. The backup gets both."""
_NAME = OutboxName.parse("outbox")


@dataclass(frozen=True, slots=True)
class CatchingUpResult:
    """A turn. Rates are in records per second; `caught_up_share` is the part of the second one's time in which the
    backup did not count yet, and `caught_up_seconds` is how long it took until it counted.
    """

    round: int
    records: int
    before: int
    meanwhile: int
    caught_up_share: float
    caught_up_seconds: float

    @property
    def share(self) -> float:
        """Of the rate before."""
        return self.meanwhile / self.before

    def as_line(self) -> dict[str, Any]:
        return {"contender": "two clusters, catching up", **asdict(self), "share": round(self.share, 3)}


def measured(
    bench: BenchServers, contender: AirflowOutbox, *, rows: int, number: int, patience: float
) -> CatchingUpResult:
    """One turn. Raises ContenderError when nothing moves for `patience` seconds."""
    with bench.workspace() as workspace:
        child = _started(contender.made(workspace), workspace)
        try:
            with psycopg.connect(workspace.dsn, autocommit=True) as connection:
                request_detach(connection, _NAME, "backup")
                outing = _Outing(workspace, connection, contender, rows=rows, patience=patience)
                *_, before = [outing.seconds() for _ in range(_BACKLOGS_BEFORE)]
                asked = time.monotonic() + _HEARD_SECONDS
                meanwhile = outing.seconds(attaches=True)
                ended = time.monotonic()
                counted = _counts_at(connection, patience=patience + _BACKLOGS_BEFORE * before + meanwhile)
        finally:
            child.end()
    share = min(1.0, max(0.0, (counted - (ended - meanwhile)) / meanwhile))
    return CatchingUpResult(
        number, rows, round(rows / before), round(rows / meanwhile), round(share, 2), round(counted - asked, 2)
    )


class _Outing:
    """Puts a backlog into the outbox, and waits until it is out."""

    def __init__(
        self,
        workspace: Workspace,
        connection: psycopg.Connection[Any],
        contender: AirflowOutbox,
        *,
        rows: int,
        patience: float,
    ) -> None:
        self._workspace = workspace
        self._connection = connection
        self._contender = contender
        self._rows = rows
        self._patience = patience

    def seconds(self, *, attaches: bool = False) -> float:
        """From the commit of a backlog until the last of its records is purged. `attaches`: the backup gets what it
        misses by then. Raises ContenderError.
        """
        with psycopg.connect(self._workspace.dsn) as loading:  # all at once: otherwise it would be published meanwhile
            for start in range(0, self._rows, _WRITTEN_TOGETHER):
                written = range(start, min(start + _WRITTEN_TOGETHER, self._rows))
                self._contender.layout.write(loading, SHAPES["keys"], self._workspace.topic, written)
            if attaches:
                request_attach(self._connection, _NAME, "backup")
            time.sleep(_HEARD_SECONDS)
        began = time.monotonic()
        [(last,)] = self._connection.execute("SELECT max(id) FROM outbox").fetchall()
        is_there = "SELECT EXISTS (SELECT FROM outbox WHERE id = %s)"  # the last one that is published, or nearly so
        while self._connection.execute(is_there, [last]).fetchall() == [(True,)]:
            if time.monotonic() - began > self._patience:
                raise ContenderError(f"record {last} is still in the outbox after {self._patience:.0f} s")
            time.sleep(_LOOK_INTERVAL)
        return time.monotonic() - began


def _started(file: Path, workspace: Workspace) -> Child:
    child = Child([COMMAND, "harvest", "-f", file], log=workspace.folder / "harvest.log")
    child.wait_for('"event": "took_over"', within=_START_SECONDS)
    return child


def _counts_at(connection: psycopg.Connection[Any], *, patience: float) -> float:
    """When the backup counts again. Raises ContenderError."""
    deadline = time.monotonic() + patience
    while (membership := read_membership(connection, _NAME)).parts["backup"] == "owed":
        if membership.attach is None or time.monotonic() > deadline:
            reasons: Mapping[str, str | None] = {each.name: each.reason for each in membership.clusters}
            raise ContenderError(f"the backup does not count: {json.dumps(reasons)}")
        time.sleep(_LOOK_INTERVAL)
    return time.monotonic()
