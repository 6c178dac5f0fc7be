"""A simulated Postgres, as far as an outbox depends on it: transactions, snapshots, the log, and what a crash undoes.

All state is the effect of the log's records, one after the other; a position in the log is a number of records. A
crash cuts the log off at the *flushed* position and plays it again, so that what was not flushed never happened: its
ids and transaction ids are given out again. A synchronous commit is visible only when it is flushed (and all before it
with it); an asynchronous one may be visible before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from simulation.database_state import Row, State

from airflow_outbox.tickets.watermarks import proof_of
from airflow_outbox.values.fence import DatabaseIdentity
from airflow_outbox.values.records import MarkedRecord, Snapshot

OUTBOX_ID = UUID(int=1)
SECRET = UUID(int=2)


class TransactionLostError(Exception):
    """Postgres crashed while the transaction was open, or an id was there already: it is rolled back."""


Change = tuple[str, tuple[Any, ...]]
"""A record of the log: a method of State, and its arguments."""


class Database:
    """One server. `tick` numbers what happens in the world, so that a checker can say what came first."""

    def __init__(self, tick: Callable[[], int]) -> None:
        self.log: list[Change] = []
        self.flushed = 0
        self.state = State()
        self.system_identifier = 7
        self.timeline = 1
        self.database_oid = 1
        self.up = True
        self.undone = 0
        """How often it has become another by a restore, a promotion or a dump."""
        self.past: list[list[Change]] = []
        """The logs of histories that were restored away, as far as they were flushed."""
        self.were_accepted: set[str] = set()
        self.were_owed: set[str] = set()
        """The clusters that did not count for a while."""
        self.refusals: list[str] = []
        """Why clusters could not be attached."""
        self.on_crash: list[Callable[[], None]] = []
        self.on_announce: list[Callable[[str, str], None]] = []
        """Told the channel, and what a leader announces, when the statement has ended that it is part of."""
        self._announced: list[tuple[str, str]] = []
        self._tick = tick
        self._life = 0

    # Transactions of applications

    def begin(self) -> Transaction:
        return Transaction(self, self._life)

    def stash(self, *records: MarkedRecord) -> None:
        """A transaction of a single statement, with ids of the caller's, which no other will draw."""
        transaction = self.begin()
        self.write("draw", max(self.state.last_drawn, *(record.id for record in records)))
        for record in records:
            transaction.insert(record)
        transaction.commit()

    @staticmethod
    def guarded(loaded: int | None, own: int) -> int:
        """The transaction id that the outbox's trigger gives a loaded row: the writer's own."""
        return own

    def draw(self) -> int:
        self.write("draw", self.state.last_drawn + 1)
        return self.state.last_drawn

    # The log

    def write(self, change: str, *values: Any) -> None:
        self.log.append((change, values))
        getattr(self.state, change)(*values)

    def statement(self, change: str, *values: Any) -> None:
        """A statement that is a transaction of its own, with synchronous_commit on."""
        self.write(change, self.state.next_transaction_id, *values)
        self.flush()
        announced, self._announced = self._announced, []
        for channel, text in announced:
            for told in list(self.on_announce):
                told(channel, text)

    def delete(self, ids: Iterable[int]) -> None:
        self.statement("delete", tuple(ids), self._tick())

    def unpark(self, numbers: Iterable[int]) -> None:
        self.statement("unpark", tuple(numbers), self._tick())

    def announce(self, watermark: Snapshot | None, shard: int = 0) -> None:
        """Part of a statement: it is written with the statement's own change, which follows."""
        if watermark is not None:
            slots = self.state.fences[shard].slots
            self.write("announce", watermark, self._tick(), slots)
            of_many = () if slots is None else (self.state.layout.number,)
            text = " ".join(map(str, (shard, *of_many, self.state.fence.incarnation, watermark)))
            channel = f"outbox {'' if slots is None else 'shards '}{OUTBOX_ID}"
            self._announced.append((channel, f"{text} {proof_of(text, SECRET)}"))

    def flush(self) -> None:
        self.flushed = len(self.log)

    def snapshot(self) -> Snapshot:
        xmax = self.state.latest_completed + 1
        in_progress = frozenset(number for number in self.state.open if number < xmax)
        return Snapshot(min(in_progress, default=xmax), xmax, in_progress)

    @property
    def history(self) -> DatabaseIdentity:
        return DatabaseIdentity(self.system_identifier, self.timeline, self.state.table_oid, self.database_oid)

    def outcome(self, transaction_id: int) -> str:
        """The answer of pg_xact_status()."""
        if transaction_id >= self.snapshot().xmax or transaction_id in self.state.open:
            return "in progress"
        return "committed" if self.state.outcomes.get(transaction_id) else "aborted"

    @property
    def doubt(self) -> str | None:
        """Why the view of what is published shows no watermark."""
        fence = self.state.fence
        if fence.halted is not None or fence.recorded is None:
            return fence.halted
        return None if fence.recorded == self.history else f"{self.history} is not {fence.recorded}"

    # Bad days

    def crash(self) -> None:
        """All that is not flushed is undone; sessions end."""
        self._restart(self.flushed)

    def copied(self, *, as_template: bool) -> Database:
        """Another server with a copy of the files; or another database in the same cluster, with an oid of its own."""
        copy = Database(self._tick)
        copy.system_identifier, copy.timeline = self.system_identifier, self.timeline
        copy.database_oid = self.database_oid + as_template
        copy.log = self.log[: self.flushed]
        copy._restart(self.flushed)
        return copy

    def restore(self, position: int, *, new_timeline: bool) -> None:
        """Go back to how it was at a position of the log; what came after belongs to another history."""
        self.past.append(self.log[: self.flushed])
        self.undone += 1
        self._restart(min(position, self.flushed))
        self.timeline += new_timeline

    def truncate_and_restart(self) -> None:
        """TRUNCATE … RESTART IDENTITY."""
        self.past.append(self.log[: self.flushed])
        self.statement("exchange", self.state.table_oid)

    def recreate(self) -> None:
        """DROP TABLE and CREATE TABLE."""
        self.past.append(self.log[: self.flushed])
        self.statement("exchange", self.state.table_oid + 1)

    def load_elsewhere(self) -> None:
        """pg_dump, and the dump is loaded into another cluster, which gives out lower transaction ids."""
        self.past.append(self.log[: self.flushed])
        self.undone += 1
        self._restart(self.flushed)
        self.system_identifier += 1
        self.statement("load", self.state.table_oid + 1)

    def set_back(self, number: int) -> None:
        """setval()."""
        self.write("draw", number)
        self.flush()

    def alive(self, life: int) -> bool:
        return self.up and life == self._life

    @property
    def life(self) -> int:
        """Differs from one start of the server to the next."""
        return self._life

    def _restart(self, position: int) -> None:
        self._life += 1
        self._announced.clear()
        del self.log[position:]
        self.flushed = position
        self.state = State()
        for change, values in self.log:
            getattr(self.state, change)(*values)
        self.state.recover()
        for told in self.on_crash:
            told()


class Transaction:
    """A transaction of an application. Once it is over, or lost, every call raises TransactionLostError."""

    def __init__(self, database: Database, life: int) -> None:
        self.transaction_id: int | None = None
        self._database = database
        self._life = life
        self._over = False

    def draw(self) -> int:
        self._require()
        return self._database.draw()

    def insert(self, record: MarkedRecord, *, of_transaction: int | None = None) -> None:
        """`of_transaction` is the id that the row is loaded with, unless it takes the column's default."""
        self._require()
        database = self._database
        if self.transaction_id is None:
            self.transaction_id = database.state.next_transaction_id
            database.write("begin", self.transaction_id)
        taken = record.id in database.state.rows or any(
            record.id == row.record.id for rows in database.state.open.values() for row in rows
        )
        if taken:
            self.rollback()
            raise TransactionLostError("duplicate key")
        written = database.guarded(of_transaction, self.transaction_id)
        database.write("insert", self.transaction_id, Row(record, written))

    def commit(self, *, synchronous: bool = True) -> None:
        self._end(True)
        if synchronous:
            self._database.flush()

    def rollback(self) -> None:
        self._end(False)

    def prepare(self) -> PreparedTransaction:
        """PREPARE TRANSACTION: it outlives sessions and crashes."""
        self._require()
        self._over = True
        assert self.transaction_id is not None
        self._database.write("prepare", self.transaction_id)
        self._database.flush()
        return PreparedTransaction(self._database, self.transaction_id)

    def _end(self, committed: bool) -> None:
        self._require()
        self._over = True
        if self.transaction_id is not None:
            self._database.write("end", self.transaction_id, committed)

    def _require(self) -> None:
        if self._over or not self._database.alive(self._life):
            raise TransactionLostError


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction, by its name."""

    database: Database
    transaction_id: int

    def end(self, *, committed: bool) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED, by whichever session. Raises TransactionLostError."""
        if not self.database.up or self.transaction_id not in self.database.state.prepared:
            raise TransactionLostError
        self.database.write("end", self.transaction_id, committed)
        self.database.flush()
