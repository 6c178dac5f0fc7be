"""The buffer between reading and publishing: pieces of rows that are read and not sent yet, within bounds."""

from __future__ import annotations

import asyncio
from collections import deque

from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.protocol.atomic_parking import closed_prefix
from airflow_outbox.harvest.protocol.batch_size import Pace
from airflow_outbox.harvest.protocol.batches import Batch, Piece
from airflow_outbox.values.pages import count_within

_SHARE = 3  # of the bounds: one page is read, one waits, one is sent


class ReadBuffer:
    """A queue of pieces. A page may be read while there `is_room`; `room_made` and `came` tell those who wait.

    - `page_records`, `page_bytes`: the bounds of a page
    - `records`: how many rows are read and not taken from here; some may be held back before they are in a piece
    """

    def __init__(
        self, limits: Limits, pace: Pace, *, atomic: bool, stopping: asyncio.Event, room_made: asyncio.Event
    ) -> None:
        self.page_records = min(limits.batch_records, -(-limits.max_in_flight_records // _SHARE))
        self.page_bytes = -(-limits.max_in_flight_bytes // _SHARE)
        self.records = 0
        self.came = asyncio.Event()
        self._bytes = 0
        self._limits = limits
        self._pace = pace
        self._atomic = atomic
        self._stopping = stopping
        self._room_made = room_made
        self._waiting: deque[Piece] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_room(self) -> bool:
        """Whether a page may be read. One may always be, however large its rows are, when nothing is held."""
        records = self._limits.max_in_flight_records - self.records
        size = self._limits.max_in_flight_bytes - self._bytes
        return records >= self.page_records and (size >= self.page_bytes or not self._bytes)

    def hold(self, records: int, size: int) -> None:
        """This many records and bytes were read."""
        self.records += records
        self._bytes += size

    def put(self, piece: Piece) -> None:
        """A piece can be published; its rows are held already."""
        self._waiting.append(piece)
        self.came.set()

    async def wait(self) -> None:
        """Wait until there is something to send."""
        self.came.clear()
        await self.came.wait()

    async def next_for(self, batch: Batch) -> Piece | None:
        """Take the next piece that belongs into the batch, or fits into it and is there; None if there is none."""
        while not self._waiting and not batch.may_end and not self._stopping.is_set():
            await self.wait()
        if not self._waiting or (batch.may_end and self._stopping.is_set()):
            return None
        most, piece = self._limits.batch_records, self._waiting[0]
        if batch.may_end and batch.records + len(piece.rows) > most:
            return None
        if batch.size + piece.bytes > self._pace.max_bytes:
            if batch.may_end:
                return None
            most = min(most, count_within(piece.rows, self._pace.max_bytes))
        self._waiting.popleft()
        if len(piece.rows) > most and piece.ends and (batch.may_end or not batch.read):  # it may end a stream
            most = closed_prefix(piece.rows, most=most) if self._atomic else most
            if most < len(piece.rows):
                piece, rest = piece.divided(most)
                self._waiting.appendleft(rest)
        self.records -= len(piece.rows)
        self._bytes -= piece.bytes
        self._room_made.set()
        return piece

    def has_within(self, size: int) -> bool:
        """Whether the next piece is there, and a page that already has this many bytes has room for it."""
        return bool(self._waiting) and size + self._waiting[0].bytes <= self.page_bytes
