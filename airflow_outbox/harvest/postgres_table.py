"""The port `Table` over Postgres: two connections a term, so that marking and purging overlap.

Most methods are those of OutboxTable and ParkedTable, called in the thread of one of the connections.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from airflow_outbox.errors import FencedError, OutboxError, PostgresUnreachableError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.protocol.ledger import Parked
from airflow_outbox.harvest.protocol.parking import refusals_of
from airflow_outbox.harvest.worker import Worker
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.fence import Fence, Flushed, LedgerPosition, Pulse
from airflow_outbox.values.pages import ANY_BYTES, Page, PageSnapshot
from airflow_outbox.values.records import Snapshot

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_BRIEFLY = 1.0  # seconds; hundreds of thousands of dead rows


def over_marking(
    method: Callable[Concatenate[OutboxTable, Arguments], Result],
) -> Callable[Concatenate[PostgresTable, Arguments], Coroutine[Any, Any, Result]]:
    """Forward a method over the connection that reads and marks."""

    async def call(port: PostgresTable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        async with within(port.statement_timeout):
            return await port.marking.call(method, *args, **kwargs)

    return call


def over_purging(
    method: Callable[Concatenate[OutboxTable, Arguments], Result],
) -> Callable[Concatenate[PostgresTable, Arguments], Coroutine[Any, Any, Result]]:
    """Forward a method over the connection that purges."""

    async def call(port: PostgresTable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        async with within(port.statement_timeout):
            return await port.purging.call(method, *args, **kwargs)

    return call


def of_parked(
    method: Callable[Concatenate[ParkedTable, Arguments], Result],
) -> Callable[Concatenate[PostgresTable, Arguments], Coroutine[Any, Any, Result]]:
    """Forward a method of the parked table over the connection that purges."""

    def called(table: OutboxTable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return method(ParkedTable(table), *args, **kwargs)

    return over_purging(called)


def over_looking(
    method: Callable[Concatenate[OutboxTable, Arguments], Result],
) -> Callable[Concatenate[PostgresTable, Arguments], Coroutine[Any, Any, Result]]:
    """Forward a method over the connection that no view depends on. It waits for no other call."""

    async def call(port: PostgresTable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        async with within(port.patience):
            return await port.look(method, *args, **kwargs)

    return call


def member_name() -> str:
    """Return the name by which operators know this process as a member."""
    return f"{socket.gethostname()}:{os.getpid()}"


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
        self._member = member_name()
        self._outbox_id = outbox_id
        self.patience = limits.heartbeat_timeout
        self.statement_timeout = limits.statement_timeout
        self._take_over_timeout = max(limits.take_over_timeout, limits.statement_timeout)
        self._is_settled_in = True  # a leader has read its first window
        self._looking = _Door()
        self.marking = _Door()
        self.purging = _Door()

    async def take_over(self, view: UUID, *, after: Collection[UUID] = ()) -> Fence:
        async with within(self.statement_timeout):
            return await self._take_over(view, after)

    async def _take_over(self, view: UUID, after: Collection[UUID]) -> Fence:
        for door in (self.marking, self.purging):
            door.end()
        self.marking, self.purging = _Door(), _Door()
        self._is_settled_in = False
        backends = []
        for door, purpose in ((self.marking, "mark"), (self.purging, "purge")):
            await door.open(self._open, purpose)
            backends.append(await door.call(OutboxTable.backend))
        await self.marking.call(OutboxTable.require_sound)  # it may have changed since this process began
        await self.marking.call(OutboxTable.prefer_indexes)
        return await self.marking.call(
            OutboxTable.take_over, view, backends, member=self._member, after=after, outbox_id=self._outbox_id
        )

    fence = over_purging(OutboxTable.fence)
    begin = over_purging(OutboxTable.begin)
    mark = over_marking(OutboxTable.mark)
    lengths = over_marking(OutboxTable.lengths)
    flush = over_purging(OutboxTable.flush)
    purge_published = over_purging(OutboxTable.purge_published)
    purge = over_purging(OutboxTable.purge)
    reset = over_purging(OutboxTable.reset)

    require_fence = over_looking(OutboxTable.require_fence)
    leave = over_looking(OutboxTable.leave)
    halt = over_looking(OutboxTable.halt)
    note_error = over_looking(OutboxTable.note_error)
    is_empty = over_looking(OutboxTable.is_empty)

    parked_lanes = of_parked(ParkedTable.lanes)
    parked_due = of_parked(ParkedTable.due)
    parked_in_part = of_parked(ParkedTable.in_part)
    parked_lengths = of_parked(ParkedTable.lengths)
    unpark = of_parked(ParkedTable.unpark)
    note_refusals = of_parked(ParkedTable.note_refusals)
    discard_requested = of_parked(ParkedTable.discard_requested)
    release = of_parked(ParkedTable.release)

    async def park(self, view: UUID, parked: Sequence[Parked], snapshot: Snapshot | None) -> None:
        await self._park(view, refusals_of(parked), snapshot)

    _park = of_parked(ParkedTable.park)

    async def holds_marks(self) -> bool:
        async with within(self._take_over_timeout):
            return await self.purging.call(OutboxTable.holds_marks)  # the other connection avoids scans

    async def first_reading(self, watermark: Snapshot | None) -> PageSnapshot:
        seconds = min(_BRIEFLY, self.statement_timeout / 4)
        async with within(self.statement_timeout):
            return await self.marking.call(OutboxTable.first_reading, watermark, seconds=seconds)

    async def read(self, reading: PageSnapshot, *, max_records: int, max_bytes: int, transaction_ids: bool) -> Page:
        bounds = {"max_records": max_records, "max_bytes": max_bytes}
        async with within(self._patience_for_reading):
            page = await self.marking.call(OutboxTable.read, reading, **bounds, transaction_ids=transaction_ids)
        self._is_settled_in = self._is_settled_in or page.complete
        return page

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
        async with within(self._patience_for_reading):
            return await self.marking.call(
                OutboxTable.heartbeat,
                view,
                published=published,
                in_flight=in_flight,
                rate=rate,
                witness=witness,
                flushed=flushed,
            )

    @property
    def _patience_for_reading(self) -> float:
        return self.statement_timeout if self._is_settled_in else self._take_over_timeout

    async def close(self) -> None:
        for door in (self.marking, self.purging, self._looking):
            door.end()

    async def look(
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


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Give up on a server that takes a call and does not answer, as behind a proxy with a lost backend."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise PostgresUnreachableError(f"Postgres has not answered for {seconds:g} s") from None


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
