"""A simulated Postgres, as far as an outbox depends on it: transactions, snapshots, the log, and what a crash undoes.

All state is the effect of the log's records, one after the other; a position in the log is a number of records. A
crash cuts the log off at the *flushed* position and plays it again, so that what was not flushed never happened: its
ids and transaction ids are given out again. A synchronous commit is visible only when it is flushed (and all before it
with it); an asynchronous one may be visible before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from airflow_outbox.tickets.published import proof_of
from airflow_outbox.values.fence import Flushed, History, LedgerPosition, OperatorRequest
from airflow_outbox.values.records import MarkedRecord, Snapshot
from airflow_outbox.values.refusals import Refusal

OUTBOX_ID = UUID(int=1)
SECRET = UUID(int=2)


class TransactionLostError(Exception):
    """Postgres crashed while the transaction was open, or an id was there already: it is rolled back."""


@dataclass(frozen=True, slots=True)
class FenceRow:
    """The row of shard 0 in `<outbox>_shard`, with those beside it in `<outbox>_ledger` and `<outbox>_state`."""

    view: UUID | None = None
    backends: tuple[Any, ...] = ()
    incarnation: int = 1
    delivery: str | None = None
    transactional_ids: tuple[str, ...] = ()
    recorded: History | None = None
    begun_view: UUID | None = None
    witness: LedgerPosition = field(default_factory=LedgerPosition)
    beats: int = 0
    halted: str | None = None
    flushed: Flushed = field(default_factory=Flushed)
    request: OperatorRequest = field(default_factory=OperatorRequest)


@dataclass(slots=True)
class Row:
    """A row of the outbox, visible or not yet."""

    record: MarkedRecord
    transaction_id: int
    mark: UUID | None = None


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """A row of the parked table; `due`: to be tried now."""

    record: MarkedRecord
    transaction_id: int
    refusal: Refusal | None
    due: bool = False
    requested: str | None = None
    discarded: bool = False

    @property
    def waits_to_be_asked_for(self) -> bool:
        return self.refusal is not None and not self.refusal.cause.can_pass

    @property
    def has_a_cause_of_its_own(self) -> bool:
        return self.refusal is not None and not self.refusal.cause.is_of_the_topic


@dataclass(slots=True)
class State:
    """What the log's records amount to."""

    rows: dict[int, Row] = field(default_factory=dict)
    open: dict[int, list[Row]] = field(default_factory=dict)
    prepared: set[int] = field(default_factory=set)
    parked: dict[int, ParkedRow] = field(default_factory=dict)
    next_number: int = 1
    fence: FenceRow = field(default_factory=FenceRow)
    last_drawn: int = 0
    next_transaction_id: int = 1000
    latest_completed: int = 999
    table_oid: int = 1
    file_number: int = 1
    outcomes: dict[int, bool] = field(default_factory=dict)
    """Which transactions have ended, and whether by a commit."""

    def begin(self, transaction_id: int) -> None:
        self.open[transaction_id] = []
        self.next_transaction_id = max(self.next_transaction_id, transaction_id + 1)

    def insert(self, transaction_id: int, row: Row) -> None:
        self.open[transaction_id].append(replace(row))

    def prepare(self, transaction_id: int) -> None:
        self.prepared.add(transaction_id)

    def end(self, transaction_id: int, committed: bool) -> None:
        rows = self.open.pop(transaction_id)
        self.prepared.discard(transaction_id)
        self.outcomes[transaction_id] = committed
        self.latest_completed = max(self.latest_completed, transaction_id)
        if committed:
            self.rows.update((row.record.id, row) for row in rows)

    def draw(self, number: int) -> None:
        self.last_drawn = number

    def delete(self, transaction_id: int, ids: Iterable[int], at: int) -> None:
        self._change(transaction_id)
        for number in ids:
            del self.rows[number]

    def set_marks(self, transaction_id: int, ids: Iterable[int], mark: UUID | None) -> None:
        self._change(transaction_id)
        for number in ids:
            self.rows[number].mark = mark

    def park(self, transaction_id: int, moves: Iterable[tuple[int, int, Refusal | None]]) -> None:
        """Rows of the outbox, by id, become parked ones, by number."""
        self._change(transaction_id)
        for identity, number, refusal in moves:
            row = self.rows.pop(identity)
            self.parked[number] = ParkedRow(row.record, row.transaction_id, refusal, due=_can_pass(refusal))
            self.next_number = number + 1

    def unpark(self, transaction_id: int, numbers: Iterable[int], at: int) -> None:
        self._change(transaction_id)
        for number in numbers:
            del self.parked[number]

    def released(self, most: int) -> tuple[int, ...]:
        """The numbers of what nothing holds any more."""
        waiting = [(number, row) for number, row in sorted(self.parked.items()) if not row.discarded]
        topics = {row.record.topic for _, row in waiting if row.refusal and row.refusal.cause.is_of_the_topic}
        heads = {row.record[1:3]: (number, row) for number, row in reversed(waiting)}
        free = [
            number
            for number, row in heads.values()
            if row.refusal is None and not row.due and row.record.topic not in topics
        ]
        return tuple(free[:most])

    def release(self, transaction_id: int, numbers: Iterable[int]) -> None:
        self._change(transaction_id)
        for number in numbers:
            self.parked[number] = replace(self.parked[number], due=True)

    def refuse(self, transaction_id: int, refusals: Mapping[int, Refusal], others: Collection[int]) -> None:
        """Parked rows were refused again, and others were tried with them."""
        self._change(transaction_id)
        for number in {*refusals, *others}:
            row = self.parked[number]
            refusal = refusals.get(number)
            if refusal is None and row.waits_to_be_asked_for and row.refusal and not row.refusal.cause.is_of_the_topic:
                refusal = row.refusal
            self.parked[number] = replace(
                row,
                refusal=refusal,
                due=_can_pass(refusal),
                requested=None if row.requested == "retry" else row.requested,
            )

    def ask(self, transaction_id: int, numbers: Iterable[int], request: str) -> None:
        """An operator asks for something."""
        self._change(transaction_id)
        for number in numbers:
            self.parked[number] = replace(self.parked[number], requested=request)

    def discard(self, transaction_id: int, numbers: Collection[int]) -> None:
        self._change(transaction_id)
        for number in numbers:
            self.parked[number] = replace(self.parked[number], discarded=True, due=False, requested=None)

    def announce(self, watermark: Snapshot, at: int) -> None:
        """What listeners are told when the statement that follows has ended."""

    def set_fence(self, transaction_id: int, fence: FenceRow) -> None:
        self._change(transaction_id)
        self.fence = fence

    def exchange(self, transaction_id: int, table_oid: int) -> None:
        self._change(transaction_id)
        self.rows, self.last_drawn, self.table_oid = {}, 0, table_oid
        self.file_number += 1

    def load(self, transaction_id: int, table_oid: int) -> None:
        """All that is committed stands in another cluster now, which is younger and has seen no transaction of it."""
        self.open.clear()
        self.prepared.clear()
        self.outcomes.clear()
        self.next_transaction_id, self.latest_completed, self.table_oid = 1000, 999, table_oid

    def recover(self) -> None:
        """What a restart does: transactions that were neither ended nor prepared are rolled back."""
        for transaction_id in [number for number in self.open if number not in self.prepared]:
            self.end(transaction_id, False)
        self.latest_completed = self.next_transaction_id - 1

    def _change(self, transaction_id: int) -> None:
        """A statement that is a transaction of its own."""
        self.next_transaction_id = max(self.next_transaction_id, transaction_id + 1)
        self.latest_completed = max(self.latest_completed, transaction_id)


def _can_pass(refusal: Refusal | None) -> bool:
    return refusal is not None and refusal.cause.can_pass


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
        self.on_crash: list[Callable[[], None]] = []
        self.on_announce: list[Callable[[str], None]] = []
        """Told what a leader announces, when the statement has ended that it is part of."""
        self._announced: list[str] = []
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
        """What the outbox's trigger makes of the transaction id that a row is loaded with: the writer's own."""
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
        for text in announced:
            for told in list(self.on_announce):
                told(text)

    def delete(self, ids: Iterable[int]) -> None:
        self.statement("delete", tuple(ids), self._tick())

    def unpark(self, numbers: Iterable[int]) -> None:
        self.statement("unpark", tuple(numbers), self._tick())

    def announce(self, watermark: Snapshot | None) -> None:
        """Part of a statement: it is written with the statement's own change, which follows."""
        if watermark is not None:
            self.write("announce", watermark, self._tick())
            text = f"0 {self.state.fence.incarnation} {watermark}"
            self._announced.append(f"{text} {proof_of(text, SECRET)}")

    def flush(self) -> None:
        self.flushed = len(self.log)

    def snapshot(self) -> Snapshot:
        xmax = self.state.latest_completed + 1
        in_progress = frozenset(number for number in self.state.open if number < xmax)
        return Snapshot(min(in_progress, default=xmax), xmax, in_progress)

    @property
    def history(self) -> History:
        return History(self.system_identifier, self.timeline, self.state.table_oid, self.database_oid)

    def outcome(self, transaction_id: int) -> str:
        """What pg_xact_status() says."""
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
        """Go back to how it was at a position of the log; what came after is of another history."""
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
