"""The port `Table` over Postgres: two connections a term, so that marking and purging overlap."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Concatenate, ParamSpec, TypeVar
from uuid import UUID

from airflow_outbox.errors import FencedError, OutboxError, PostgresUnreachableError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.parked_records import parked_table, reasons, why
from airflow_outbox.harvest.protocol.ledger import Parked
from airflow_outbox.harvest.protocol.parking import Refusal
from airflow_outbox.harvest.worker import Worker
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.fence import Fence, Flushed, LedgerPosition, Pulse
from airflow_outbox.values.pages import ANY_BYTES, Length, OutboxRow, Page, PageSnapshot
from airflow_outbox.values.records import Lane, MarkedRecord, Snapshot

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


_BRIEFLY = 1.0  # seconds; hundreds of thousands of dead rows


class PostgresTable:
    """One member's door to its outbox.

    Only `take_over` makes new connections. A term that loses its connection is over: a crash may have undone the
    history that it remembers, and the fence row names the backends of its view.
    """

    def __init__(
        self,
        data_source: str,
        name: OutboxName,
        limits: Limits,
        *,
        archives: bool = False,
        waits_for_standbys: bool = True,
        outbox_id: UUID | None = None,
        most_bytes: int = ANY_BYTES,
    ) -> None:
        """`archives`: purged records go into the archive. `waits_for_standbys`: only data on the synchronous standbys
        is durable. `outbox_id` is the only outbox to take over, even if the table names another later (None: any).
        `most_bytes` is the size of the largest record that Kafka's client takes.
        """

        def opened(purpose: str) -> OutboxTable:
            connection = connect(data_source, purpose=purpose, waits_for_standbys=waits_for_standbys)
            return OutboxTable(connection, name, archives=archives, most_bytes=most_bytes)

        self._open = opened
        self._member = f"{socket.gethostname()}:{os.getpid()}"
        self._outbox_id = outbox_id
        self._patience = limits.heartbeat_timeout
        self._statement_timeout = limits.statement_timeout
        self._take_over_timeout = max(limits.take_over_timeout, limits.statement_timeout)
        self._is_settled_in = True  # a leader has read its first window
        self._looking = _Door()
        self._marking = _Door()
        self._purging = _Door()

    async def take_over(self, view: UUID, *, after: Collection[UUID] = ()) -> Fence:
        async with self._within(self._statement_timeout):
            return await self._take_over(view, after)

    async def _take_over(self, view: UUID, after: Collection[UUID]) -> Fence:
        for door in (self._marking, self._purging):
            door.end()
        self._marking, self._purging = _Door(), _Door()
        self._is_settled_in = False
        backends = []
        for door, purpose in ((self._marking, "mark"), (self._purging, "purge")):
            await door.open(self._open, purpose)
            backends.append(await door.call(OutboxTable.backend))
        await self._marking.call(OutboxTable.require_sound)  # it may have changed since this process began
        await self._marking.call(OutboxTable.prefer_indexes)
        return await self._marking.call(
            OutboxTable.take_over, view, backends, member=self._member, after=after, outbox_id=self._outbox_id
        )

    async def fence(self, view: UUID) -> Fence:
        async with self._within(self._statement_timeout):
            return await self._purging.call(OutboxTable.fence, view)

    async def begin(
        self,
        view: UUID,
        *,
        delivery: str,
        witness: LedgerPosition,
        transactional_ids: Sequence[str] | None = None,
        flushed: Flushed | None = None,
    ) -> None:
        async with self._within(self._statement_timeout):
            await self._purging.call(
                OutboxTable.begin,
                view,
                delivery=delivery,
                witness=witness,
                transactional_ids=transactional_ids,
                flushed=flushed,
            )

    async def holds_marks(self) -> bool:
        async with self._within(self._take_over_timeout):
            return await self._purging.call(OutboxTable.holds_marks)  # the other connection avoids scans

    async def mark(
        self, view: UUID, *, max_records: int, max_bytes: int, only_marked: bool = False
    ) -> list[MarkedRecord]:
        async with self._within(self._statement_timeout):
            return await self._marking.call(
                OutboxTable.mark, view, max_records=max_records, max_bytes=max_bytes, only_marked=only_marked
            )

    async def first_reading(self, watermark: Snapshot | None) -> PageSnapshot:
        seconds = min(_BRIEFLY, self._statement_timeout / 4)
        async with self._within(self._statement_timeout):
            return await self._marking.call(OutboxTable.first_reading, watermark, seconds=seconds)

    @property
    def _patience_for_reading(self) -> float:
        return self._statement_timeout if self._is_settled_in else self._take_over_timeout

    async def read(self, reading: PageSnapshot, *, max_records: int, max_bytes: int, transaction_ids: bool) -> Page:
        async with self._within(self._patience_for_reading):
            page = await self._marking.call(
                OutboxTable.read,
                reading,
                max_records=max_records,
                max_bytes=max_bytes,
                transaction_ids=transaction_ids,
            )
        self._is_settled_in = self._is_settled_in or page.complete
        return page

    async def lengths(self, transaction_ids: Collection[int]) -> Mapping[int, Length]:
        async with self._within(self._statement_timeout):
            return await self._marking.call(OutboxTable.lengths, transaction_ids)

    async def flush(self, position: int) -> int:
        async with self._within(self._statement_timeout):
            return await self._purging.call(OutboxTable.flush, position)

    async def purge_published(
        self,
        view: UUID,
        ids: Sequence[int],
        snapshot: Snapshot,
        *,
        watermark: Snapshot | None = None,
        batch: int | None = None,
    ) -> int:
        async with self._within(self._statement_timeout):
            return await self._purging.call(
                OutboxTable.purge_published, view, ids, snapshot, watermark=watermark, batch=batch
            )

    async def purge(self, view: UUID, ids: Sequence[int]) -> None:
        async with self._within(self._statement_timeout):
            await self._purging.call(OutboxTable.purge, view, ids)

    async def reset(self, view: UUID, ids: Sequence[int]) -> None:
        async with self._within(self._statement_timeout):
            await self._purging.call(OutboxTable.reset, view, ids)

    async def require_fence(self, view: UUID) -> None:
        async with self._within(self._patience):
            await self._look(OutboxTable.require_fence, view)

    async def parked_lanes(self) -> tuple[Mapping[Lane, int], Collection[str]]:
        return await self._parked(ParkedTable.lanes)

    async def park(self, view: UUID, parked: Sequence[Parked], snapshot: Snapshot | None) -> None:
        await self._parked(ParkedTable.park, view, reasons(parked), snapshot)

    async def parked_due(self, *, max_records: int, max_bytes: int, of_all_lanes: bool) -> Sequence[OutboxRow]:
        return await self._parked(
            ParkedTable.due, max_records=max_records, max_bytes=max_bytes, of_all_lanes=of_all_lanes
        )

    async def parked_in_part(self) -> Collection[int]:
        return await self._parked(ParkedTable.in_part)

    async def parked_lengths(self, transaction_ids: Collection[int]) -> Mapping[int, Length]:
        return await self._parked(ParkedTable.lengths, transaction_ids)

    async def unpark(self, view: UUID, numbers: Sequence[int]) -> None:
        await self._parked(ParkedTable.unpark, view, numbers)

    async def note_refusals(self, view: UUID, refusals: Mapping[int, Refusal], *, others: Collection[int]) -> None:
        reasons = {number: why(refusal) for number, refusal in refusals.items()}
        await self._parked(ParkedTable.note_refusals, view, reasons, others)

    async def discard_requested(self, view: UUID) -> Sequence[Lane]:
        return await self._parked(ParkedTable.discard_requested, view)

    async def release(self, view: UUID, *, max_records: int) -> bool:
        return await self._parked(ParkedTable.release, view, max_records=max_records)

    async def _parked(
        self,
        method: Callable[Concatenate[ParkedTable, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        def call(table: OutboxTable) -> Result:
            return method(parked_table(table), *args, **kwargs)

        async with self._within(self._statement_timeout):
            return await self._purging.call(call)

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
        # After the marks, which hold the fence row shared for longer than the purges do: neither waits for the other.
        async with self._within(self._patience_for_reading):
            return await self._marking.call(
                OutboxTable.heartbeat,
                view,
                published=published,
                in_flight=in_flight,
                rate=rate,
                witness=witness,
                flushed=flushed,
            )

    async def halt(self, view: UUID, reason: str) -> None:
        async with self._within(self._patience):
            await self._look(OutboxTable.halt, view, reason)

    async def note_error(self, view: UUID, error: str) -> None:
        async with self._within(self._patience):
            await self._look(OutboxTable.note_error, view, error)

    async def is_empty(self) -> bool:
        async with self._within(self._statement_timeout):
            return await self._look(OutboxTable.is_empty)

    async def close(self) -> None:
        for door in (self._marking, self._purging, self._looking):
            door.end()

    @asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[None]:
        """Give up on a server that takes a call and does not answer, as behind a proxy with a lost backend."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise PostgresUnreachableError(f"Postgres has not answered for {seconds:g} s") from None

    async def _look(
        self,
        method: Callable[Concatenate[OutboxTable, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call over the connection that no view depends on. Make it when it is needed."""
        if not self._looking.is_open:
            self._looking.end()
            self._looking = _Door()
            await self._looking.open(self._open, "look")
        return await self._looking.call(method, *args, **kwargs)


class _Door:
    """A connection and the thread that uses it. A connection that has failed is closed and stays closed."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._table: OutboxTable | None = None

    @property
    def is_open(self) -> bool:
        return self._table is not None

    async def open(self, connected: Callable[[str], OutboxTable], purpose: str) -> None:
        self._worker = Worker(f"outbox-{purpose}")
        self._table = await self._worker.call(connected, purpose)

    async def call(
        self,
        method: Callable[Concatenate[OutboxTable, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        table, worker = self._table, self._worker
        if table is None or worker is None:
            raise PostgresUnreachableError("the connection to Postgres was lost earlier in this term")
        try:
            return await worker.call(method, table, *args, **kwargs)
        except FencedError:
            raise
        except (OutboxError, asyncio.CancelledError):  # the outcome of an abandoned call is unknown
            self.end()
            raise

    def end(self) -> None:
        """Close after the call under way, if any, without waiting for it."""
        table, self._table = self._table, None
        worker, self._worker = self._worker, None
        if worker is not None:
            if table is not None:
                worker.run(table.close)
            worker.end()
