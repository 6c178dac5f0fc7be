"""This project over a table that a backlog has gone through before, whose dead rows may not be removed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg

from benchmarks.peers.contender import Turn
from benchmarks.peers.outbox import Outbox
from benchmarks.peers.processes import Child, ContenderError
from benchmarks.peers.rows import SHAPES
from benchmarks.peers.scene import PARTITIONS, Place
from benchmarks.scaled.generated import GENERATED

_DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox'::regclass"


class Backlogged(Outbox):
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
    def turn(self, place: Place) -> Iterator[Turn]:
        with super().turn(place) as turn, ExitStack() as stack:
            topic = f"{place.topic}-before"
            place.make_topic(topic, partitions=PARTITIONS)
            GENERATED.load(place.dsn, SHAPES["keys"], topic, self._before)
            if self._held:
                holder = stack.enter_context(psycopg.connect(place.dsn))
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT FROM outbox LIMIT 1")
            harvest = [*self.command(place.folder / "outbox.yaml"), "--until", "drained"]
            done = subprocess.run(harvest, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode != 0:
                raise ContenderError(f"the backlog before was not published: {done.stdout[-500:]}{done.stderr[-500:]}")
            yield _UsedTurn(turn, self, place)


class _UsedTurn(Turn):
    def __init__(self, turn: Turn, contender: Used, place: Place) -> None:
        self._turn = turn
        self._contender = contender
        self._place = place

    def begin(self) -> Child:
        with psycopg.connect(self._place.dsn, autocommit=True) as connection:
            found = connection.execute(_DEAD).fetchone()
        self._contender.dead_rows = int(found[0]) if found else 0
        return self._turn.begin()

    def begun(self) -> float:
        return self._turn.begun()
