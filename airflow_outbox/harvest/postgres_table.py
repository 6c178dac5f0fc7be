"""The port `Table` over Postgres: two connections a term, so that marking and purging overlap; one where there are
several shards, which overlap each other.

Most methods are those of OutboxTable and ParkedTable, called in the thread of one of the connections.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack
from uuid import UUID

from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.ports import NO_WITNESS
from airflow_outbox.harvest.protocol.ledger import Entry, Parked, expanded
from airflow_outbox.harvest.protocol.parking import refusals_of
from airflow_outbox.harvest.threaded_connection import Looking, ReopenedConnection, ThreadedConnection, within
from airflow_outbox.harvest.worker_thread import Watchdog
from airflow_outbox.postgres.clusters import ClusterStatements
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.marks import MarkStatements
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.table import SHARD, OutboxTable
from airflow_outbox.postgres.undeleted import UndeletedRecords
from airflow_outbox.postgres.windows import WindowStatements
from airflow_outbox.values.fence import Fence, Flushed, LedgerPosition, Pulse
from airflow_outbox.values.pages import ANY_BYTES, OutboxRow, Page, PageBounds, PageSnapshot
from airflow_outbox.values.records import Snapshot
from airflow_outbox.values.refusals import Refusal
from airflow_outbox.values.verdict import Thresholds

Arguments = ParamSpec("Arguments")
Part = TypeVar("Part")
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
        async with within(port.patience_for_purging):
            return await port.purging.call(method, *args, **kwargs)

    return call


def of(
    part: Callable[[OutboxTable], Part], method: Callable[Concatenate[Part, Arguments], Result]
) -> Callable[Concatenate[OutboxTable, Arguments], Result]:
    """Return a method of a part of the table as one of the table."""

    def called(table: OutboxTable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return method(part(table), *args, **kwargs)

    return called


def windows_of(table: OutboxTable) -> WindowStatements:
    return table.windows


def marks_of(table: OutboxTable) -> MarkStatements:
    return table.marks


def undeleted_of(table: OutboxTable) -> UndeletedRecords:
    return table.undeleted


def over_looking(
    method: Callable[Concatenate[OutboxTable, Arguments], Result],
) -> Callable[Concatenate[PostgresTable, Arguments], Coroutine[Any, Any, Result]]:
    """Forward a method over the connection that no view depends on. It waits for no other call."""

    async def call(port: PostgresTable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        async with within(port.patience):
            return await port.look(method, *args, **kwargs)

    return call


def over_asking(
    method: Callable[Concatenate[OutboxTable, Arguments], Result],
) -> Callable[Concatenate[PostgresTable, Arguments], Coroutine[Any, Any, Result]]:
    """Forward a method, which changes nothing, over a connection of its own: what is harvested does not wait for it."""

    async def call(port: PostgresTable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        async with within(port.statement_timeout):
            return await port.asking.call(method, *args, **kwargs)

    return call


def member_name() -> str:
    """Return the name by which operators know this process as a member."""
    return f"{socket.gethostname()}:{os.getpid()}"


class PostgresTable:
    """One member's access to its outbox.

    Only `take_over` makes new connections. A term that loses its connection is over: a crash may have undone the
    history that it remembers, and the fence row names the backends of its view.

    The class is large because it keeps four connections, and the settings and bounds that each is made and used with.
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
        shard: int = SHARD,
        layout: int | None = None,
        looking: Looking | None = None,
        reshards: bool = False,
        thresholds: Thresholds | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """`archives`: purged records go into the archive. `waits_for_standbys`: only data on the synchronous standbys
        is durable. `outbox_id` is the only outbox to take over, even if the table names another later (None: any).
        `most_bytes` is the size of the largest record that Kafka's client takes. `layout` is the only one to take over
        in (None: any). `looking` is what several shards of a process, or several outboxes, look over; then each has one
        connection of its own, and not two. `reshards`: another number of shards is brought about by this. `thresholds`
        are the bounds by which this member judges. `watchdog` watches the threads that harvest.
        """

        def opened(purpose: str) -> OutboxTable:
            connection = connect(data_source, purpose=purpose, waits_for_standbys=waits_for_standbys)
            return OutboxTable(
                connection, name, archives=archives, most_bytes=most_bytes, shard=shard, thresholds=thresholds
            )

        self._open = opened
        self._tried_in: str | None = None  # the snapshot in which parked records to publish were read last
        self._member = member_name()
        self._outbox_id = outbox_id
        self.patience = limits.heartbeat_timeout
        self.statement_timeout = limits.statement_timeout
        self._poll_interval = limits.poll_interval
        self._take_over_timeout = max(limits.take_over_timeout, limits.statement_timeout)
        self._is_settled_in = True  # a leader has read its first window
        self.looking = ReopenedConnection(self._open, "look")
        self.asking = ReopenedConnection(self._open, "ask")
        self._shard = shard
        self._layout = layout
        self._reshards = reshards
        self._shared = looking
        self._watchdog = watchdog
        self.marking = ThreadedConnection(watchdog)
        self.purging = ThreadedConnection(watchdog)

    async def take_over(self, view: UUID, *, after: Collection[UUID] = ()) -> Fence:
        async with within(self.statement_timeout):
            return await self._take_over(view, after)

    async def _take_over(self, view: UUID, after: Collection[UUID]) -> Fence:
        for connection in (self.marking, self.purging):
            connection.end()
        self.marking = ThreadedConnection(self._watchdog)
        self.purging = ThreadedConnection(self._watchdog) if self._shared is None else self.marking
        self._is_settled_in = False
        backends = []
        connections = (
            {self.marking: "mark", self.purging: "purge"} if self._shared is None else {self.marking: "harvest"}
        )
        for connection, purpose in connections.items():
            await connection.open(self._open, purpose)
            backends.append(await connection.call(OutboxTable.backend))
        await self.marking.call(OutboxTable.require_sound)  # it may have changed since this process began
        await self.marking.call(OutboxTable.prefer_indexes)
        fence = await self.marking.call(
            OutboxTable.take_over,
            view,
            backends,
            member=self._member,
            after=after,
            outbox_id=self._outbox_id,
            layout=self._layout,
            reshards=self._reshards,
        )
        if fence.slots is not None:
            await self.purging.call(OutboxTable.know_slots, fence.slots)
        return fence

    fence = over_purging(OutboxTable.fence)
    begin = over_purging(OutboxTable.begin)

    note_producers = over_purging(of(ClusterStatements, ClusterStatements.note_producers))
    committed_rows = over_purging(of(ClusterStatements, ClusterStatements.committed_rows))

    left_to_catch_up = over_purging(of(ClusterStatements, ClusterStatements.left_to_catch_up))
    note_caught_up = over_purging(of(ClusterStatements, ClusterStatements.note_caught_up))
    skip = over_purging(of(ClusterStatements, ClusterStatements.skip))
    are_unpublished = over_purging(of(ClusterStatements, ClusterStatements.are_unpublished))
    close_attach = over_purging(of(ClusterStatements, ClusterStatements.close_attach))
    drop_owed = over_purging(of(ClusterStatements, ClusterStatements.drop_owed))
    attach = over_purging(of(ClusterStatements, ClusterStatements.attach))
    refuse_attach = over_purging(of(ClusterStatements, ClusterStatements.refuse_attach))
    detach = over_purging(of(ClusterStatements, ClusterStatements.detach))

    async def keep_owed(self, view: UUID, entry: Entry) -> None:
        runs, unparked = entry.ids(), expanded(entry.unparked)
        await self._keep_owed(view, entry.batch, entry.packed(), ids=runs, unparked=unparked, snapshot=entry.snapshot)

    _keep_owed = over_purging(of(ClusterStatements, ClusterStatements.keep_owed))

    owed_rows = over_asking(of(ClusterStatements, ClusterStatements.owed_rows))
    last_owed = over_asking(of(ClusterStatements, ClusterStatements.last_owed))

    async def owed_entries(self, *, after: int, upto: int, most: int) -> Sequence[Entry]:
        found = await self._owed_entries(after=after, upto=upto, most=most)
        return [Entry.unpacked(chunks) for chunks in found]

    _owed_entries = over_asking(of(ClusterStatements, ClusterStatements.owed_entries))

    lengths = over_marking(of(windows_of, WindowStatements.lengths))
    flush = over_purging(of(windows_of, WindowStatements.flush))
    purge_published = over_purging(of(windows_of, WindowStatements.purge_published))

    mark = over_marking(of(marks_of, MarkStatements.mark))
    purge = over_purging(of(marks_of, MarkStatements.purge))
    reset = over_purging(of(marks_of, MarkStatements.reset))

    delete_again = over_purging(of(undeleted_of, UndeletedRecords.try_again))

    require_fence = over_looking(OutboxTable.require_fence)
    leave = over_looking(OutboxTable.leave)
    halt = over_looking(OutboxTable.halt)
    note_error = over_looking(OutboxTable.note_error)
    looks = over_looking(OutboxTable.looks)

    write_layout = over_purging(OutboxTable.write_layout)

    parked_lanes = over_purging(of(ParkedTable, ParkedTable.lanes))
    waiting_lanes = over_purging(of(ParkedTable, ParkedTable.waiting_lanes))
    parked_in_part = over_purging(of(ParkedTable, ParkedTable.in_part))
    parked_lengths = over_purging(of(ParkedTable, ParkedTable.lengths))
    unpark = over_purging(of(ParkedTable, ParkedTable.unpark))
    discard_requested = over_purging(of(ParkedTable, ParkedTable.discard_requested))
    release = over_purging(of(ParkedTable, ParkedTable.release))

    async def park(self, view: UUID, parked: Sequence[Parked], snapshot: Snapshot | None) -> None:
        await self._park(view, refusals_of(parked), snapshot)

    _park = over_purging(of(ParkedTable, ParkedTable.park))

    async def parked_due(self, *, max_records: int, max_bytes: int, of_all_lanes: bool) -> Sequence[OutboxRow]:
        due, self._tried_in = await self._parked_due(
            max_records=max_records, max_bytes=max_bytes, of_all_lanes=of_all_lanes
        )
        return due

    _parked_due = over_purging(of(ParkedTable, ParkedTable.due))

    async def note_refusals(self, view: UUID, refusals: Mapping[int, Refusal], *, others: Collection[int]) -> None:
        await self._note_refusals(view, refusals, others=others, tried_in=self._tried_in)

    _note_refusals = over_purging(of(ParkedTable, ParkedTable.note_refusals))

    async def is_empty(self) -> bool:
        async with within(self.patience):  # dead rows may make it slow: the look at the fence does not wait behind it
            return await self.asking.call(OutboxTable.is_empty)

    async def holds_marks(self) -> bool:
        async with within(self._take_over_timeout):
            return await self.purging.call(
                of(marks_of, MarkStatements.holds_marks)
            )  # the other connection avoids scans

    async def first_reading(self, watermark: Snapshot | None) -> PageSnapshot:
        seconds = min(_BRIEFLY, self.statement_timeout / 4)
        async with within(self.statement_timeout):
            return await self.marking.call(of(windows_of, WindowStatements.first_reading), watermark, seconds=seconds)

    async def read(self, reading: PageSnapshot, *, wait: float = 0.0, **bounds: Unpack[PageBounds]) -> Page:
        interval = self._poll_interval
        if wait and self._shared is not None:  # the connection is needed for purges meanwhile
            await asyncio.sleep(interval)
            wait = 0.0
        async with within(self._patience_for_reading):
            page = await self.marking.call(
                of(windows_of, WindowStatements.read), reading, wait=wait, interval=interval, **bounds
            )
        self._is_settled_in = self._is_settled_in or page.complete
        return page

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
    def patience_for_purging(self) -> float:
        """A shard with a single connection reads before it purges."""
        return self.statement_timeout if self._shared is None else self._patience_for_reading

    @property
    def _patience_for_reading(self) -> float:
        return self.statement_timeout if self._is_settled_in else self._take_over_timeout

    async def close(self) -> None:
        for connection in (self.marking, self.purging, self.looking, self.asking):
            connection.end()

    async def look(
        self,
        method: Callable[Concatenate[OutboxTable, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call over the connection that no view depends on. Make it when it is needed."""
        if self._shared is not None:
            return await self._shared.call(self._open, self._shard, method, *args, **kwargs)
        return await self.looking.call(method, *args, **kwargs)
