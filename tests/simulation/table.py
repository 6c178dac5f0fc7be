"""The port `Table` over the simulated Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from simulation.network import Answer, Effect, Link, Network
from simulation.postgres import Row
from simulation.statements import Backend, Server

from airflow_outbox.errors import FencedError, OutboxError, PostgresUnreachableError
from airflow_outbox.harvest.protocol.ledger import Parked
from airflow_outbox.values.fence import Fence, Flushed, LedgerPosition, Pulse
from airflow_outbox.values.pages import Length, OutboxRow, Page, PageSnapshot
from airflow_outbox.values.records import Lane, MarkedRecord, Snapshot
from airflow_outbox.values.refusals import Refusal

_STATEMENT_TIMEOUT = 5.0
_LOOK_TIMEOUT = 1.0


@dataclass(slots=True)
class _Door:
    """A connection. One on which a call has failed stays closed."""

    backend: Backend | None = None


class SimulatedTable:
    """One member's connections: a call that fails ends its connection until the next take-over."""

    def __init__(self, server: Server, network: Network) -> None:
        self.link = Link(network, PostgresUnreachableError, patience=_STATEMENT_TIMEOUT)
        self._server = server
        self._reading = _Door()
        self._purging = _Door()

    async def take_over(self, view: UUID, *, after: Collection[UUID] = ()) -> Fence:
        backends = self._server.connect(), self._server.connect()
        self._reading, self._purging = (_Door(backend) for backend in backends)
        answer: Fence = await self._call(
            self._reading, "take_over", lambda answer: self._server.take_over(backends, view, after, answer)
        )
        return answer

    async def fence(self, view: UUID) -> Fence:
        answer: Fence = await self._run(self._reading, "fence", lambda: self._server.fence(view))
        return answer

    async def begin(
        self,
        view: UUID,
        *,
        delivery: str,
        witness: LedgerPosition,
        transactional_ids: Sequence[str] | None = None,
        flushed: Flushed | None = None,
    ) -> None:
        def effect() -> None:
            self._server.begin(self._fenced(view), delivery, witness, transactional_ids, flushed)

        await self._run_locked(self._reading, "begin", self._fenced(view), effect, alone=True)

    async def holds_marks(self) -> bool:
        found: bool = await self._run(self._purging, "holds_marks", lambda: self._server.holds_marks())
        return found

    async def mark(
        self, view: UUID, *, max_records: int, max_bytes: int, only_marked: bool = False
    ) -> list[MarkedRecord]:
        def effect() -> list[MarkedRecord]:
            bounds = {"max_records": max_records, "max_bytes": max_bytes, "only_marked": only_marked}
            return self._server.mark(view, **bounds)

        marked: list[MarkedRecord] = await self._run_locked(self._reading, "mark", view, effect)
        return marked

    async def first_reading(self, watermark: Snapshot | None) -> PageSnapshot:
        first: PageSnapshot = await self._run(
            self._reading, "first_reading", lambda: self._server.first_reading(watermark)
        )
        return first

    async def read(self, reading: PageSnapshot, *, max_records: int, max_bytes: int, transaction_ids: bool) -> Page:
        bounds = {"max_records": max_records, "max_bytes": max_bytes, "transaction_ids": transaction_ids}
        page: Page = await self._run(self._reading, "read", lambda: self._server.read(reading, **bounds))
        return page

    async def lengths(self, transaction_ids: Collection[int]) -> Mapping[int, Length]:
        lengths: Mapping[int, Length] = await self._run(
            self._reading, "lengths", lambda: self._server.lengths(transaction_ids)
        )
        return lengths

    async def flush(self, position: int) -> int:
        def effect() -> int:
            if self._server.database.flushed < position:
                self._server.database.flush()
            return self._server.database.flushed

        flushed: int = await self._run(self._reading, "flush", effect)
        return flushed

    async def purge_published(
        self,
        view: UUID,
        ids: Sequence[int],
        snapshot: Snapshot,
        *,
        watermark: Snapshot | None = None,
        batch: int | None = None,
    ) -> int:
        def effect() -> int:
            self._server.database.announce(watermark)
            self._server.delete(ids, unless=lambda row: not snapshot.sees(row.transaction_id))
            return self._server.database.flushed

        flushed: int = await self._run_locked(self._purging, "purge_published", self._fenced(view), effect)
        return flushed

    async def parked_lanes(self) -> tuple[Mapping[Lane, int], Collection[str]]:
        lanes: tuple[Mapping[Lane, int], Collection[str]] = await self._run(
            self._purging, "parked_lanes", self._server.parked_lanes
        )
        return lanes

    async def park(self, view: UUID, parked: Sequence[Parked], snapshot: Snapshot | None) -> None:
        def unless(row: Row) -> bool:
            return row.mark != view if snapshot is None else not snapshot.sees(row.transaction_id)

        await self._run_locked(self._purging, "park", self._fenced(view), lambda: self._server.park(parked, unless))

    async def parked_due(self, *, max_records: int, max_bytes: int, of_all_lanes: bool) -> Sequence[OutboxRow]:
        def effect() -> Sequence[OutboxRow]:
            return self._server.parked_due(max_records=max_records, of_all_lanes=of_all_lanes)

        due: Sequence[OutboxRow] = await self._run(self._purging, "parked_due", effect)
        return due

    async def parked_in_part(self) -> Collection[int]:
        found: Collection[int] = await self._run(self._purging, "parked_in_part", self._server.parked_in_part)
        return found

    async def parked_lengths(self, transaction_ids: Collection[int]) -> Mapping[int, Length]:
        lengths: Mapping[int, Length] = await self._run(
            self._purging, "parked_lengths", lambda: self._server.parked_lengths(transaction_ids)
        )
        return lengths

    async def unpark(self, view: UUID, numbers: Sequence[int]) -> None:
        await self._run_locked(self._purging, "unpark", self._fenced(view), lambda: self._server.unpark(numbers))

    async def note_refusals(self, view: UUID, refusals: Mapping[int, Refusal], *, others: Collection[int]) -> None:
        await self._run_locked(
            self._purging, "note_refusals", self._fenced(view), lambda: self._server.note_refusals(refusals, others)
        )

    async def discard_requested(self, view: UUID) -> Sequence[Lane]:
        lanes: Sequence[Lane] = await self._run_locked(
            self._purging, "discard_requested", self._fenced(view), self._server.discard_requested
        )
        return lanes

    async def release(self, view: UUID, *, max_records: int) -> bool:
        def effect() -> bool:
            return self._server.release(max_records)

        is_all_used: bool = await self._run_locked(self._purging, "release", self._fenced(view), effect)
        return is_all_used

    async def purge(self, view: UUID, ids: Sequence[int]) -> None:
        await self._run_locked(
            self._purging, "purge", view, lambda: self._server.delete(ids, unless=lambda row: row.mark != view)
        )

    async def reset(self, view: UUID, ids: Sequence[int]) -> None:
        await self._run_locked(self._purging, "reset", view, lambda: self._server.reset(view, ids))

    async def require_fence(self, view: UUID) -> None:
        await self._run(None, "require_fence", lambda: self._server.require(view))

    async def heartbeat(
        self,
        view: UUID,
        *,
        published: int,
        in_flight: int,
        rate: float,
        witness: LedgerPosition | None = None,
        flushed: Flushed | None = None,
    ) -> Pulse:
        def effect() -> Pulse:
            return self._server.heartbeat(self._fenced(view), witness, flushed)

        pulse: Pulse = await self._run_locked(self._reading, "heartbeat", self._fenced(view), effect, alone=True)
        return pulse

    async def leave(self, view: UUID) -> None:
        await self._run(None, "leave", lambda: None)

    async def halt(self, view: UUID, reason: str) -> None:
        await self._run(None, "halt", lambda: self._server.halt(view, reason))

    async def note_error(self, view: UUID, error: str) -> None:
        await self._run(None, "note_error", lambda: None)

    async def is_empty(self) -> bool:
        empty: bool = await self._run(None, "is_empty", lambda: not self._server.database.state.rows)
        return empty

    async def close(self) -> None:
        self._reading, self._purging = _Door(), _Door()

    def _fenced(self, view: UUID) -> UUID | None:
        """The view that the fence must name. A planted bug returns None: statements without the fence."""
        return view

    async def _run(self, door: _Door | None, name: str, effect: Callable[[], object]) -> Any:
        backend = door.backend if door else None
        return await self._call(door, name, lambda answer: self._server.run(backend, answer, effect))

    async def _run_locked(
        self, door: _Door, name: str, view: UUID | None, effect: Callable[[], object], *, alone: bool = False
    ) -> Any:
        def locked(answer: Answer, backend: Backend | None = door.backend) -> None:
            assert backend is not None
            self._server.run_locked(backend, view, answer, effect, alone=alone)

        return await self._call(door, name, locked)

    async def _call(self, door: _Door | None, name: str, effect: Effect) -> Any:
        if door is not None and door.backend is None:
            raise PostgresUnreachableError("the connection to Postgres was lost earlier in this term")
        try:
            return await self.link.ask(name, effect, patience=_STATEMENT_TIMEOUT if door else _LOOK_TIMEOUT)
        except FencedError:
            raise
        except (OutboxError, asyncio.CancelledError):  # what became of it, nobody knows
            if door is not None:
                door.backend = None
            raise
