"""The port `Table` over the simulated Postgres."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack
from uuid import UUID

from simulation.database_state import Row
from simulation.locking import Backend
from simulation.network import Answer, Effect, Link, Network
from simulation.statements import Server

from airflow_outbox.errors import FencedError, OutboxError, PostgresUnreachableError
from airflow_outbox.harvest.ports import NO_BACKUPS, NO_WITNESS
from airflow_outbox.harvest.protocol.ledger import Entry, Parked
from airflow_outbox.values.fence import Fence, Flushed, LedgerPosition, LedgerRow, Pulse, Purged, ShardLook, Skipped
from airflow_outbox.values.pages import Length, OutboxRow, Page, PageBounds, PageSnapshot
from airflow_outbox.values.records import Key, Lane, MarkedRecord, Snapshot
from airflow_outbox.values.refusals import Refusal

_LOOK_INTERVAL = 0.02
_STATEMENT_TIMEOUT = 5.0
_LOOK_TIMEOUT = 1.0


@dataclass(slots=True)
class _Connection:
    """A connection. One on which a call has failed stays closed."""

    backend: Backend | None = None


def postgres_link(network: Network) -> Link:
    """A process' way to Postgres."""
    return Link(network, PostgresUnreachableError, patience=_STATEMENT_TIMEOUT)


class SimulatedTable:
    """One member's connections: a call that fails ends its connection until the next take-over."""

    def __init__(
        self,
        server: Server,
        network: Network,
        *,
        link: Link | None = None,
        layout: int | None = None,
        reshards: bool = False,
    ) -> None:
        """Several shards of a process have one `link`."""
        self.link = link or postgres_link(network)
        self._server = server
        self._layout = layout
        self._reshards = reshards
        self._asked_for: set[int] | None = None  # when the parked records to publish were read last
        self._reading = _Connection()
        self._purging = _Connection()

    async def take_over(self, view: UUID, *, after: Collection[UUID] = ()) -> Fence:
        backends = self._server.connect(), self._server.connect()
        self._reading, self._purging = (_Connection(backend) for backend in backends)
        how = {"layout": self._layout, "reshards": self._reshards}
        answer: Fence = await self._call(
            self._reading, "take_over", lambda answer: self._server.take_over(backends, view, after, answer, **how)
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
        backups: Mapping[str, LedgerRow] = NO_BACKUPS,
    ) -> None:
        def effect() -> None:
            self._server.begin(self._fenced(view), delivery, witness, transactional_ids, flushed, backups)

        await self._run_locked(self._reading, "begin", self._fenced(view), effect, alone=True)

    async def note_producers(self, view: UUID, cluster: str, transactional_ids: Sequence[str]) -> None:
        def effect() -> None:
            self._server.note_producers(self._fenced(view), cluster, transactional_ids)

        await self._run_locked(self._reading, "note_producers", self._fenced(view), effect, alone=True)

    async def committed_rows(
        self, ids: Sequence[int], unparked: Sequence[int], snapshot: Snapshot
    ) -> Sequence[OutboxRow]:
        rows: Sequence[OutboxRow] = await self._run(
            self._reading, "committed_rows", lambda: self._server.committed_rows(ids, unparked, snapshot)
        )
        return rows

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

    async def read(self, reading: PageSnapshot, *, wait: float = 0.0, **bounds: Unpack[PageBounds]) -> Page:
        ending = asyncio.get_running_loop().time() + wait
        while wait and reading.after is not None and reading.within is None:
            await asyncio.sleep(_LOOK_INTERVAL)
            now = await self._run(self._reading, "look", self._server.database.snapshot)
            if now != reading.after or asyncio.get_running_loop().time() >= ending:
                break
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
    ) -> Purged:
        def effect() -> Purged:
            self._server.database.announce(watermark, self._server.shard)
            self._server.delete(ids, lambda row: not snapshot.sees(row.transaction_id))
            return Purged(self._server.database.flushed)

        purged: Purged = await self._run_locked(self._purging, "purge_published", self._fenced(view), effect)
        return purged

    async def parked_lanes(self, *, most: int) -> tuple[Mapping[str, Counter[Key]], Collection[str], Mapping[str, int]]:
        lanes: tuple[Mapping[str, Counter[Key]], Collection[str], Mapping[str, int]] = await self._run(
            self._purging, "parked_lanes", lambda: self._server.parked_lanes(most)
        )
        return lanes

    async def waiting_lanes(self, lanes: Sequence[Lane], *, leaving: Sequence[int]) -> Collection[Lane]:
        found: Collection[Lane] = await self._run(
            self._purging, "waiting_lanes", lambda: self._server.waiting_lanes(lanes, leaving)
        )
        return found

    async def park(self, view: UUID, parked: Sequence[Parked], snapshot: Snapshot | None) -> None:
        def unless(row: Row) -> bool:
            return row.mark != view if snapshot is None else not snapshot.sees(row.transaction_id)

        await self._run_locked(self._purging, "park", self._fenced(view), lambda: self._server.park(parked, unless))

    async def parked_due(self, *, max_records: int, max_bytes: int, of_all_lanes: bool) -> Sequence[OutboxRow]:
        def effect() -> Sequence[OutboxRow]:
            self._asked_for = self._server.asked_for()
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

    async def unpark(self, view: UUID, numbers: Sequence[int], *, batch: int | None = None) -> None:
        def effect() -> None:
            self._server.unpark(numbers)

        await self._run_locked(self._purging, "unpark", self._fenced(view), effect)

    async def keep_owed(self, view: UUID, entry: Entry) -> None:
        def effect() -> None:
            self._server.keep_owed(entry)

        await self._run_locked(self._purging, "keep_owed", self._fenced(view), effect)

    async def owed_entries(self, *, after: int, upto: int, most: int) -> Sequence[Entry]:
        found: Sequence[Entry] = await self._run(
            None, "owed_entries", lambda: self._server.owed_entries(after, upto, most)
        )
        return found

    async def owed_rows(self, batch: int) -> Sequence[OutboxRow]:
        found: Sequence[OutboxRow] = await self._run(None, "owed_rows", lambda: self._server.owed_rows(batch))
        return found

    async def last_owed(self) -> int:
        found: int = await self._run(None, "last_owed", self._server.last_owed)
        return found

    async def left_to_catch_up(self, cluster: str) -> int:
        found: int = await self._run(self._purging, "left_to_catch_up", lambda: self._server.left_to_catch_up(cluster))
        return found

    async def note_caught_up(self, view: UUID, cluster: str, witness: LedgerPosition) -> None:
        def effect() -> None:
            self._server.note_caught_up(self._fenced(view), cluster, witness)

        await self._run_locked(self._purging, "note_caught_up", self._fenced(view), effect)

    async def skip(self, view: UUID, cluster: str, skipped: Skipped) -> None:
        def effect() -> None:
            self._server.skip(self._fenced(view), cluster, skipped)

        await self._run_locked(self._purging, "skip", self._fenced(view), effect)

    async def are_unpublished(self, ids: Sequence[int], numbers: Sequence[int]) -> bool:
        found: bool = await self._run(
            self._purging, "are_unpublished", lambda: self._server.are_unpublished(ids, numbers)
        )
        return found

    async def close_attach(self, view: UUID, cluster: str) -> bool:
        def effect() -> bool:
            return self._server.close_attach(view, cluster)

        is_asked_for: bool = await self._run_locked(self._purging, "close_attach", view, effect)
        return is_asked_for

    async def drop_owed(self, view: UUID, *, seconds: float, most_bytes: int) -> int:
        def effect() -> int:
            return self._server.drop_owed(most_bytes)

        dropped: int = await self._run_locked(self._purging, "drop_owed", self._fenced(view), effect)
        return dropped

    async def attach(
        self,
        views: Mapping[int, UUID],
        successor: UUID,
        cluster: str,
        rows: Mapping[int, LedgerRow],
        *,
        lacks: bool = False,
    ) -> None:
        def effect() -> None:
            self._server.attach(views, successor, cluster, rows)

        await self._run_locked(self._reading, "attach", views[self._server.shard], effect, alone=True)

    async def refuse_attach(self, view: UUID, cluster: str, reason: str) -> None:
        def effect() -> None:
            self._server.refuse_attach(view, cluster, reason)

        await self._run_locked(self._reading, "refuse_attach", view, effect)

    async def detach(self, view: UUID, successor: UUID, clusters: Collection[str], reason: str) -> None:
        def effect() -> None:
            self._server.detach(view, successor, clusters)

        await self._run_locked(self._reading, "detach", view, effect, alone=True)

    async def note_refusals(self, view: UUID, refusals: Mapping[int, Refusal], *, others: Collection[int]) -> None:
        def effect() -> None:
            asked = self._server.asked_for()
            since = asked - (asked if self._asked_for is None else self._asked_for)
            self._server.note_refusals(refusals, others, asked_since=since)

        await self._run_locked(self._purging, "note_refusals", self._fenced(view), effect)

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

    async def delete_again(self, view: UUID) -> None:
        """Nothing keeps records here."""

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
        witness: Mapping[str, LedgerPosition] = NO_WITNESS,
        flushed: Flushed | None = None,
    ) -> Pulse:
        def effect() -> Pulse:
            return self._server.heartbeat(self._fenced(view), witness, flushed)

        pulse: Pulse = await self._run_locked(self._reading, "heartbeat", self._fenced(view), effect, alone=True)
        return pulse

    async def leave(self, view: UUID) -> None:
        await self._run(None, "leave", lambda: self._server.leave(view))

    async def looks(self) -> list[ShardLook]:
        looks: list[ShardLook] = await self._run(None, "looks", self._server.looks)
        return looks

    async def halt(self, view: UUID, reason: str) -> None:
        await self._run(None, "halt", lambda: self._server.halt(view, reason))

    async def note_error(self, view: UUID, error: str) -> None:
        await self._run(None, "note_error", lambda: None)

    async def write_layout(self, views: Mapping[int, UUID], shards: int) -> dict[int, UUID]:
        def effect() -> dict[int, UUID]:
            return self._server.write_layout(views, shards)

        fresh: dict[int, UUID] = await self._run_locked(self._purging, "write_layout", None, effect, alone=True)
        return fresh

    async def is_empty(self) -> bool:
        empty: bool = await self._run(None, "is_empty", lambda: not self._server.database.state.rows)
        return empty

    async def close(self) -> None:
        self._reading, self._purging = _Connection(), _Connection()

    def _fenced(self, view: UUID) -> UUID | None:
        """The view that the fence must name. A planted bug returns None: statements without the fence."""
        return view

    async def _run(self, connection: _Connection | None, name: str, effect: Callable[[], object]) -> Any:
        backend = connection.backend if connection else None
        return await self._call(connection, name, lambda answer: self._server.run(backend, answer, effect))

    async def _run_locked(
        self,
        connection: _Connection,
        name: str,
        view: UUID | None,
        effect: Callable[[], object],
        *,
        alone: bool = False,
    ) -> Any:
        def locked(answer: Answer, backend: Backend | None = connection.backend) -> None:
            assert backend is not None
            self._server.run_locked(backend, view, answer, effect, alone=alone)

        return await self._call(connection, name, locked)

    async def _call(self, connection: _Connection | None, name: str, effect: Effect) -> Any:
        if connection is not None and connection.backend is None:
            raise PostgresUnreachableError("the connection to Postgres was lost earlier in this term")
        try:
            return await self.link.ask(name, effect, patience=_STATEMENT_TIMEOUT if connection else _LOOK_TIMEOUT)
        except FencedError:
            raise
        except (OutboxError, asyncio.CancelledError):  # what became of it, nobody knows
            if connection is not None:
                connection.backend = None
            raise
