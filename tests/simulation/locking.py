"""Sessions of the simulated Postgres, and the lock of the fence row: which statements hold it, and which wait.

A statement goes on when its client has died; only its backend's end ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Self
from uuid import UUID

from simulation.database_state import FenceRow
from simulation.loop import ELSEWHERE
from simulation.network import Answer
from simulation.postgres import Database

from airflow_outbox.errors import FencedError, OutboxError, PostgresUnreachableError


class Backend:
    """A session of one connection."""

    __slots__ = ("_database", "_ended", "_life")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._life = database.life
        self._ended = False

    def __repr__(self) -> str:
        """The same in every process."""
        return "Backend()"

    @property
    def is_alive(self) -> bool:
        return not self._ended and self._database.alive(self._life)

    def end(self) -> None:
        self._ended = True


class LockingServer:
    """Carries out statements. A statement that locks the fence row takes up to `slowness` seconds, rarely longer."""

    def __init__(self, database: Database, random: Random, *, slowness: float, shard: int = 0) -> None:
        self.database = database
        self.shard = shard
        self._random = random
        self._others: dict[int, Self] = {shard: self}
        self.slowness = slowness
        self._holders: list[tuple[Backend, Answer]] = []  # statements that hold the fence row
        self._alone: tuple[Backend, Answer] | None = None  # the last one that changed it, and let nobody in besides
        self._waiting: list[tuple[Callable[[], None], bool]] = []  # statements in turn, and whether they need it alone
        database.on_crash.append(self._crashed)

    def of(self, shard: int) -> Self:
        """The same server, as the leader of a shard asks it: it has a fence row of its own."""
        if shard not in self._others:
            other = type(self)(self.database, self._random, slowness=self.slowness, shard=shard)
            other._others = self._others
            self._others[shard] = other
        return self._others[shard]

    @property
    def row(self) -> FenceRow:
        """The shard's row."""
        return self.database.state.fences[self.shard]

    def set_fence(self, fence: FenceRow, shard: int | None = None) -> None:
        self.database.statement("set_fence", fence, self.shard if shard is None else shard)

    def connect(self) -> Backend:
        return Backend(self.database)

    def run(self, backend: Backend | None, answer: Answer, effect: Callable[[], object]) -> None:
        """A statement that takes effect at once. Raises nothing: an error is the answer."""
        if not (self.database.up if backend is None else backend.is_alive):
            answer.refuse(PostgresUnreachableError("simulated: the server has closed the connection"))
            return
        try:
            answer.give(effect())
        except OutboxError as error:
            answer.refuse(error)

    def run_locked(
        self,
        backend: Backend,
        view: UUID | None,
        answer: Answer,
        effect: Callable[[], object],
        *,
        alone: bool = False,
    ) -> None:
        """A statement that holds the fence row until it is committed: shared, or `alone` when it changes the row.

        Without a view it goes by no fence.
        """
        holder = backend, answer

        def start() -> None:
            if not backend.is_alive or (view is not None and self.row.view != view):
                self.run(backend, answer, lambda: self.require(view))
                return
            self._holders.append(holder)
            self._alone = holder if alone else self._alone
            draw = self._random.random
            duration = self.slowness * draw() * (1 if draw() < 0.95 else 40)
            asyncio.get_running_loop().call_later(duration, finish, context=ELSEWHERE)

        def finish() -> None:
            if holder in self._holders:
                self._holders.remove(holder)
                self.run(backend, answer, effect)
                self._let_in()

        self._waiting.append((start, alone))
        self._let_in()

    def require(self, view: UUID | None) -> None:
        if view is not None and self.row.view != view:
            raise FencedError

    def _end(self, backend: Backend) -> None:
        backend.end()
        for holder in [holder for holder in self._holders if holder[0] is backend]:
            self._holders.remove(holder)
            holder[1].refuse(PostgresUnreachableError("simulated: terminated by an administrator's command"))

    def _let_in(self) -> None:
        while self._waiting:
            start, alone = self._waiting[0]
            if self._holders and (alone or self._alone in self._holders):
                return
            del self._waiting[0]
            start()

    def _crashed(self) -> None:
        for backend, _ in list(self._holders):
            self._end(backend)
        self._let_in()
