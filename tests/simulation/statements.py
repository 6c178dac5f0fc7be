"""The harvester's statements in the simulated Postgres: what they answer, and what they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from uuid import UUID

from simulation.cluster_statements import ClusterStatements
from simulation.database_state import SLOTS, FenceRow, Row, slot_of
from simulation.locking import Backend
from simulation.loop import ELSEWHERE
from simulation.network import Answer
from simulation.parked_statements import ParkedStatements
from simulation.postgres import OUTBOX_ID

from airflow_outbox.errors import FencedError, LayoutChangedError, TakeOverError
from airflow_outbox.values.fence import (
    Fence,
    Flushed,
    LedgerPosition,
    LedgerRow,
    OperatorRequest,
    Pulse,
    ShardLook,
)
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.pages import Cursors, Length, OutboxRow, Page, PageSnapshot
from airflow_outbox.values.records import MarkedRecord, Snapshot

_LOCK_TIMEOUT = 1.0


class Server(ClusterStatements, ParkedStatements):
    """Carries out statements."""

    def take_over(
        self,
        backends: tuple[Backend, ...],
        view: UUID,
        after: Collection[UUID],
        answer: Answer,
        *,
        layout: int | None = None,
        reshards: bool = False,
    ) -> None:
        def effect() -> Fence:
            fence, state = self.row, self.database.state
            if not self.may_be_led(layout):
                raise LayoutChangedError
            if after and fence.view not in after:
                raise FencedError
            is_open = self.shard == 0 or not (state.layout.wanted or (state.fence.attaches and state.fence.attach))
            if not reshards and (fence.slots == () or not is_open):
                raise TakeOverError
            if state.fence.recorded is None and self.shard:
                self.set_fence(replace(state.fence, recorded=self.database.history), 0)
            recorded = state.fence.recorded or self.database.history
            now = asyncio.get_running_loop().time()
            led = {"is_led": True, "hands_over": False, "heard_at": now}
            self.set_fence(replace(fence, view=view, backends=backends, recorded=recorded, **led))
            return self.fence(view)

        def start() -> None:
            self.run(backends[0], answer, effect)

        def expire() -> None:
            if waiting in self._waiting:
                for old in self.row.backends:
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
            asyncio.get_running_loop().call_later(_LOCK_TIMEOUT, expire, context=ELSEWHERE)

    def may_be_led(self, layout: int | None) -> bool:
        """Whether the outbox has this layout (None: any will do)."""
        return layout in (None, self.database.state.layout.number)

    def fence(self, view: UUID) -> Fence:
        self.require(view)
        database, row = self.database, self.row
        state = database.state
        whole = state.fence
        assert whole.recorded is not None
        of_rows = {row.transaction_id for row in state.rows.values()}
        return Fence(
            request=self._request,
            outbox_id=OUTBOX_ID,
            incarnation=whole.incarnation,
            delivery=row.delivery,
            transactional_ids=row.transactional_ids,
            recorded=whole.recorded,
            present=database.history,
            witness=row.witness,
            last_drawn=state.last_drawn,
            beats=row.beats,
            next_transaction_id=database.snapshot().xmax,
            newest_transaction_id=max((number for number in of_rows if number >= database.snapshot().xmax), default=0),
            halted=whole.halted,
            flushed=row.flushed,
            begun_view=row.begun_view,
            shard=self.shard,
            layout=state.layout.number,
            slots=row.slots,
            primary=row.primary,
            backups=row.backups,
            owed={name: replace(owed, skipped=row.skipped.get(name)) for name, owed in row.owed.items()},
            begun_primary=row.begun_primary,
            dormant=tuple(sorted(shard for shard, other in state.fences.items() if _rests(other))),
            membership=state.fence.membership,
        )

    @property
    def _request(self) -> OperatorRequest:
        state = self.database.state
        wanted = None if self.shard else state.layout.wanted
        whole = state.fence
        asked = {"attach": whole.attach, "attach_how": whole.attach_how, "attaches": whole.attaches}
        return replace(state.fence.request, handover=self.row.hands_over, shards=wanted, **asked)

    def write_layout(self, views: Mapping[int, UUID], shards: int) -> dict[int, UUID]:
        """Another layout: fresh views for all, and the watermark that sees what all see."""
        state = self.database.state
        self.require_views(views)
        watermarks = [row.flushed.watermark for row in state.present.values()]
        watermark = self.met(watermarks)
        highest_id = max(row.witness.highest_id for row in state.fences.values())
        fences = {}
        for shard, row in state.fences.items():
            slots = tuple(range(shard, SLOTS, shards)) if shard < shards else ()
            fences[shard] = replace(
                row,
                view=UUID(int=self._random.getrandbits(128), version=4),
                is_led=False,
                slots=None if shards == 1 and shard == 0 else slots,
                delivery=state.fence.delivery,
                witness=replace(row.witness, highest_id=highest_id),
                flushed=replace(row.flushed, watermark=watermark),
            )
        self.database.statement("set_layout", Layout(state.layout.number + 1, shards), fences)
        return {shard: row.view for shard, row in fences.items() if shard < shards and row.view is not None}

    def require_views(self, views: Mapping[int, UUID]) -> None:
        """A member that writes a layout has to lead all shards that have slots."""
        if views != {shard: row.view for shard, row in self.database.state.present.items()}:
            raise FencedError

    @staticmethod
    def met(watermarks: Sequence[Snapshot | None]) -> Snapshot | None:
        known = [watermark for watermark in watermarks if watermark is not None]
        return reduce(Snapshot.meet, known) if len(known) == len(watermarks) else None

    def begin(
        self,
        view: UUID | None,
        delivery: str,
        witness: LedgerPosition,
        transactional_ids: Sequence[str] | None,
        flushed: Flushed | None,
        backups: Mapping[str, LedgerRow],
    ) -> None:
        self.require(view)
        row = self.row
        assert backups.keys() == row.backups.keys() or transactional_ids is None
        ids = row.transactional_ids if transactional_ids is None else tuple(transactional_ids)
        row = replace(row, transactional_ids=ids, flushed=flushed or row.flushed)
        row = replace(row, delivery=delivery, witness=witness, beats=row.beats + 1, begun_view=row.view)
        row = replace(row, begun_primary=row.primary)
        self.set_fence(replace(row, backups=backups or row.backups))

    def heartbeat(self, view: UUID | None, witness: Mapping[str, LedgerPosition], flushed: Flushed | None) -> Pulse:
        self.require(view)
        row = self.row
        seen = _seen(row.witness, witness.get(row.primary))
        backups = {
            cluster: replace(backup, witness=_seen(backup.witness, witness.get(cluster)))
            for cluster, backup in row.backups.items()
        }
        row = replace(row, backups=backups)
        if flushed is not None:
            self.database.announce(flushed.watermark, self.shard)
        heard_at = asyncio.get_running_loop().time()
        row = replace(row, witness=seen, beats=row.beats + 1, flushed=flushed or row.flushed, heard_at=heard_at)
        self.set_fence(row)
        state = self.database.state
        return Pulse(self._request, state.table_oid, state.last_drawn, row.beats, state.fence.halted)

    def leave(self, view: UUID) -> None:
        if self.row.view == view:
            self.set_fence(replace(self.row, is_led=False))

    def looks(self) -> list[ShardLook]:
        now = asyncio.get_running_loop().time()
        return [
            ShardLook(shard, row.view, row.is_led, now - row.heard_at, row.hands_over)
            for shard, row in sorted(self.database.state.present.items())
        ]

    def halt(self, view: UUID, reason: str) -> None:
        row = self.database.state.fence
        if self.row.view == view:
            self.set_fence(replace(row, halted=row.halted or reason), 0)

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
        if reading.cursors is not None:
            return self._read_slots(reading.cursors, due, snapshot, max_records=max_records)
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

    def _read_slots(self, cursors: Cursors, due: Sequence[Row], snapshot: Snapshot, *, max_records: int) -> Page:
        asked = cursors[:max_records]
        most = max_records // max(1, len(asked))
        rows: list[OutboxRow] = []
        left: list[tuple[int, int]] = []
        by_slot: dict[int, list[MarkedRecord]] = {}
        for row in due:
            by_slot.setdefault(slot_of(row.record), []).append(row.record)
        for slot, above in asked if by_slot else ():
            if (waiting := by_slot.get(slot)) is None:
                continue
            own = [record for record in waiting if record.id > above][:most]
            rows += [(*record, record.size, None) for record in own]
            if len(own) == most:
                left.append((slot, own[-1].id))
        left += cursors[len(asked) :]
        return Page(
            rows,
            snapshot,
            not left,
            written=len(self.database.log),
            flushed=self.database.flushed,
            table_oid=self.database.state.table_oid,
            file_number=self.database.state.file_number,
            cursors=tuple(left),
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


def _rests(row: FenceRow) -> bool:
    """Whether a shard has batches, but no slots in this layout."""
    return row.slots == () and any(
        witness.batch
        for witness in (row.witness, *(each.witness for each in (*row.backups.values(), *row.owed.values())))
    )


def _seen(before: LedgerPosition, now: LedgerPosition | None) -> LedgerPosition:
    return before if now is None else replace(now, topic_id=before.topic_id)
