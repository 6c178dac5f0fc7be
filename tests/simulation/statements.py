"""What the simulated Postgres makes of the harvester's statements: which lock the fence row, and for how long, and what
they change at the end. A statement goes on when its client has died; only its backend's end ends it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from random import Random
from uuid import UUID

from simulation.loop import ELSEWHERE
from simulation.network import Answer
from simulation.postgres import OUTBOX_ID, Database, FenceRow, Row

from airflow_outbox.errors import FencedError, OutboxError, PostgresUnreachableError, TakeOverError
from airflow_outbox.harvest.protocol.ledger import Parked, expanded
from airflow_outbox.values.fence import Fence, Flushed, LedgerPosition, Pulse
from airflow_outbox.values.pages import Length, OutboxRow, Page, PageSnapshot
from airflow_outbox.values.records import Lane, MarkedRecord, Snapshot
from airflow_outbox.values.refusals import Cause, Refusal

LOCK_TIMEOUT = 1.0


class Backend:
    """A session of one connection."""

    __slots__ = ("_database", "_ended", "_life")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._life = database.life
        self._ended = False

    @property
    def is_alive(self) -> bool:
        return not self._ended and self._database.alive(self._life)

    def end(self) -> None:
        self._ended = True


class Server:
    """Carries out statements. A statement that locks the fence row takes up to `slowness` seconds, rarely longer."""

    def __init__(self, database: Database, random: Random, *, slowness: float) -> None:
        self.database = database
        self._random = random
        self.slowness = slowness
        self._holders: list[tuple[Backend, Answer]] = []  # statements that hold the fence row
        self._alone: tuple[Backend, Answer] | None = None  # the last one that changed it, and let nobody in besides
        self._waiting: list[tuple[Callable[[], None], bool]] = []  # statements in turn, and whether they need it alone
        database.on_crash.append(self._crashed)

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
            if not backend.is_alive or (view is not None and self.database.state.fence.view != view):
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

    def take_over(self, backends: tuple[Backend, ...], view: UUID, after: Collection[UUID], answer: Answer) -> None:
        def effect() -> Fence:
            fence = self.database.state.fence
            if after and fence.view not in after:
                raise FencedError
            recorded = fence.recorded or self.database.history
            self.set_fence(replace(fence, view=view, backends=backends, recorded=recorded))
            return self.fence(view)

        def start() -> None:
            self.run(backends[0], answer, effect)

        def expire() -> None:
            if waiting in self._waiting:
                for old in self.database.state.fence.backends:
                    self._end(old)
                self._let_in()
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                answer.refuse(TakeOverError())
                self._let_in()

        waiting = start, True
        self._waiting.append(waiting)
        self._let_in()
        if waiting in self._waiting:
            asyncio.get_running_loop().call_later(LOCK_TIMEOUT, expire, context=ELSEWHERE)

    # What statements do

    def require(self, view: UUID | None) -> None:
        if view is not None and self.database.state.fence.view != view:
            raise FencedError

    def set_fence(self, fence: FenceRow) -> None:
        self.database.statement("set_fence", fence)

    def fence(self, view: UUID) -> Fence:
        self.require(view)
        database, row = self.database, self.database.state.fence
        state = database.state
        assert row.recorded is not None
        of_rows = {row.transaction_id for row in state.rows.values()}
        return Fence(
            request=row.request,
            outbox_id=OUTBOX_ID,
            incarnation=row.incarnation,
            delivery=row.delivery,
            transactional_ids=row.transactional_ids,
            recorded=row.recorded,
            present=database.history,
            witness=row.witness,
            last_drawn=state.last_drawn,
            beats=row.beats,
            next_transaction_id=database.snapshot().xmax,
            newest_transaction_id=max((number for number in of_rows if number >= database.snapshot().xmax), default=0),
            halted=row.halted,
            flushed=row.flushed,
            begun_view=row.begun_view,
        )

    def begin(
        self,
        view: UUID | None,
        delivery: str,
        witness: LedgerPosition,
        transactional_ids: Sequence[str] | None,
        flushed: Flushed | None,
    ) -> None:
        self.require(view)
        row = self.database.state.fence
        ids = row.transactional_ids if transactional_ids is None else tuple(transactional_ids)
        row = replace(row, transactional_ids=ids, flushed=flushed or row.flushed)
        row = replace(row, delivery=delivery, witness=witness, beats=row.beats + 1, begun_view=row.view)
        self.set_fence(row)

    def heartbeat(self, view: UUID | None, witness: LedgerPosition | None, flushed: Flushed | None) -> Pulse:
        self.require(view)
        row = self.database.state.fence
        seen = row.witness if witness is None else replace(witness, topic_id=row.witness.topic_id)
        if flushed is not None:
            self.database.announce(flushed.watermark)
        self.set_fence(replace(row, witness=seen, beats=row.beats + 1, flushed=flushed or row.flushed))
        return Pulse(row.request, self.database.state.table_oid, self.database.state.last_drawn, row.beats + 1)

    def halt(self, view: UUID, reason: str) -> None:
        row = self.database.state.fence
        if row.view == view:
            self.set_fence(replace(row, halted=row.halted or reason))

    def first_reading(self, watermark: Snapshot | None) -> PageSnapshot:
        """Half of the time there are dead rows."""
        return PageSnapshot(after=watermark if self._random.random() < 0.5 else None)

    def read(self, reading: PageSnapshot, *, max_records: int, max_bytes: int, transaction_ids: bool) -> Page:
        snapshot = self.database.snapshot()
        after, within = reading.after, reading.within
        due = [
            row
            for number, row in sorted(self.database.state.rows.items())
            if number > reading.above
            and (after is None or not after.sees(row.transaction_id))
            and (within is None or within.sees(row.transaction_id))
            and (after is None or row.transaction_id < snapshot.xmax)
        ]
        rows: list[OutboxRow] = []
        size = 0
        for row in due:
            size += row.record.size
            if len(rows) == max_records or (rows and size > max_bytes):
                break
            rows.append((*row.record, row.record.size, row.transaction_id if transaction_ids else None))
        return Page(
            rows,
            snapshot,
            len(rows) == len(due),
            written=len(self.database.log),
            flushed=self.database.flushed,
            table_oid=self.database.state.table_oid,
            file_number=self.database.state.file_number,
        )

    def lengths(self, transaction_ids: Collection[int]) -> dict[int, Length]:
        found: dict[int, list[int]] = {}
        for number, row in self.database.state.rows.items():
            if row.transaction_id in transaction_ids:
                found.setdefault(row.transaction_id, []).append(number)
        return {transaction_id: Length(len(ids), max(ids)) for transaction_id, ids in found.items()}

    def holds_marks(self) -> bool:
        return any(row.mark is not None for row in self.database.state.rows.values())

    def mark(self, view: UUID, *, max_records: int, max_bytes: int, only_marked: bool) -> list[MarkedRecord]:
        marked: list[MarkedRecord] = []
        size = 0
        for _, row in sorted(self.database.state.rows.items()):
            if len(marked) == max_records or size >= max_bytes:
                break
            if row.mark != view and (row.mark is not None or not only_marked):
                marked.append(row.record)
                size += row.record.size
        if marked:
            self.database.statement("set_marks", tuple(record.id for record in marked), view)
        return marked

    def reset(self, view: UUID, ids: Sequence[int]) -> None:
        self.database.statement("set_marks", self._found(ids, lambda row: row.mark == view), None)

    def delete(self, ids: Sequence[int], unless: Callable[[Row], bool]) -> None:
        self.database.delete(self._found(ids, lambda row: not unless(row)))

    # Parked records

    def parked_lanes(self) -> tuple[dict[Lane, int], set[str]]:
        waiting = [row for row in self.database.state.parked.values() if not row.discarded]
        lanes = Counter((row.record.topic, row.record.key) for row in waiting)
        refused = (row for row in waiting if row.refusal and row.refusal.cause.is_of_the_topic)
        return dict(lanes), {row.record.topic for row in refused}

    def park(self, parked: Sequence[Parked], unless: Callable[[Row], bool]) -> None:
        number = self.database.state.next_number
        moves: list[tuple[int, int, Refusal | None]] = []
        for group in parked:
            refusal = None if group.cause is None else Refusal(Cause(group.cause), group.reason or "")
            moves += [
                (identity, 0, refusal) for identity in self._found(expanded(group.runs), lambda row: not unless(row))
            ]
        moves = [(identity, number + place, refusal) for place, (identity, _, refusal) in enumerate(sorted(moves))]
        if moves:
            self.database.statement("park", tuple(moves))

    def parked_due(self, *, max_records: int, of_all_lanes: bool) -> list[OutboxRow]:
        rows = sorted((number, row) for number, row in self.database.state.parked.items() if not row.discarded)
        asked = [row for _, row in rows if row.due or row.requested == "retry"]
        lanes = {row.record[1:3] for row in asked}
        topics = {row.record.topic for row in asked if row.refusal and row.refusal.cause.is_of_the_topic}
        refused = {row.record[1:3]: number for number, row in reversed(rows) if row.has_a_cause_of_its_own}
        due = [
            (number, *row.record[1:], 0, row.transaction_id)
            for number, row in rows
            if (of_all_lanes and asked)
            or row.record[1:3] in lanes
            or (row.record.topic in topics and number < refused.get(row.record[1:3], number + 1))
        ]
        return due[:max_records]

    def parked_in_part(self) -> set[int]:
        state = self.database.state
        return {row.transaction_id for row in state.parked.values()} & {
            row.transaction_id for row in state.rows.values()
        }

    def parked_lengths(self, transaction_ids: Collection[int]) -> dict[int, Length]:
        found: dict[int, list[int]] = {}
        waiting = {number: row for number, row in self.database.state.parked.items() if not row.discarded}
        for number, row in waiting.items():
            if row.transaction_id in transaction_ids:
                found.setdefault(row.transaction_id, []).append(number)
        stays = {row.transaction_id for row in waiting.values() if row.waits_to_be_asked_for}
        if any(row.requested == "retry" for row in waiting.values()):
            stays.clear()
        left = Counter(row.transaction_id for row in self.database.state.rows.values())
        return {
            number: Length(len(numbers) + left[number], max(numbers))
            for number, numbers in found.items()
            if number not in stays
        }

    def unpark(self, numbers: Sequence[int]) -> None:
        parked = self.database.state.parked
        self.database.unpark(number for number in numbers if number in parked)

    def note_refusals(self, refusals: Mapping[int, Refusal], others: Collection[int]) -> None:
        parked = self.database.state.parked
        there = {number: why for number, why in refusals.items() if number in parked}
        behind = {
            number
            for number, row in parked.items()
            for head, why in there.items()
            if number > head and not row.discarded and (row.due or row.requested == "retry")
            if row.record.topic == parked[head].record.topic
            if row.record.key == parked[head].record.key or why.cause.is_of_the_topic
        }
        answered = [number for number in {*others, *behind} - there.keys() if number in parked]
        self.database.statement("refuse", there, sorted(answered))

    def release(self, max_records: int) -> bool:
        held = self.database.state.released(max_records)
        self.database.statement("release", held)
        return len(held) == max_records

    def discard_requested(self) -> list[Lane]:
        asked = [
            (number, row)
            for number, row in self.database.state.parked.items()
            if row.requested == "discard" and not row.discarded
        ]
        if asked:
            self.database.statement("discard", tuple(number for number, _ in asked))
        return [(row.record.topic, row.record.key) for _, row in asked]

    def _found(self, ids: Sequence[int], condition: Callable[[Row], bool]) -> tuple[int, ...]:
        rows = self.database.state.rows
        return tuple(number for number in dict.fromkeys(ids) if number in rows and condition(rows[number]))

    # Locks

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
