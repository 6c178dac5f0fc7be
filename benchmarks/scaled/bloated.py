"""This project over a table that a backlog has gone through before, whose dead rows may not be removed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg

from benchmarks.peers.contender import Turn
from benchmarks.peers.outbox import AirflowOutbox
from benchmarks.peers.processes import Child, ContenderError
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.servers import PARTITIONS, Workspace
from benchmarks.scaled.generated import GENERATED

_DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox'::regclass"


class Backlogged(AirflowOutbox):
    """This project over rows that Postgres has made."""

    layout = GENERATED


class Used(Backlogged):
    """A backlog of `before` rows is published and purged before the measured one. `held`: another session has a
    snapshot from before the purge until the turn's end, so no vacuum may remove the purged rows.
    """

    def __init__(self, name: str, *, before: int, held: bool) -> None:
        super().__init__(name)
        self.dead_rows = 0
        """In the table when the last turn began, as Postgres' last vacuum has counted them."""
        self._before = before
        self._held = held

    @contextmanager
    def turn(self, workspace: Workspace) -> Iterator[Turn]:
        with super().turn(workspace) as turn, ExitStack() as stack:
            topic = f"{workspace.topic}-before"
            workspace.make_topic(topic, partitions=PARTITIONS)
            GENERATED.load(workspace.dsn, SHAPES["keys"], topic, self._before)
            if self._held:
                holder = stack.enter_context(psycopg.connect(workspace.dsn))
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT FROM outbox LIMIT 1")
            harvest = [*self.command(workspace.folder / "outbox.yaml"), "--until", "drained"]
            done = subprocess.run(harvest, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode != 0:
                raise ContenderError(f"the backlog before was not published: {done.stdout[-500:]}{done.stderr[-500:]}")
            yield _UsedTurn(turn, self, workspace)


class _UsedTurn(Turn):
    def __init__(self, turn: Turn, contender: Used, workspace: Workspace) -> None:
        self._turn = turn
        self._contender = contender
        self._workspace = workspace

    def begin(self) -> Child:
        with psycopg.connect(self._workspace.dsn, autocommit=True) as connection:
            found = connection.execute(_DEAD).fetchone()
        self._contender.dead_rows = int(found[0]) if found else 0
        return self._turn.begin()

    def begun(self) -> float:
        return self._turn.begun()
