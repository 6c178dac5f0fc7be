"""Reading: pages of the outbox become pieces, which go on together.

Pages follow the windows (`protocol.windows`). A page that shows another table, or another file of it, ends the term
before any of its records goes out (`protocol.recovery`). In an `atomic` outbox, rows wait until their source
transactions have been read whole (`protocol.atomic_batches`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_outbox.harvest.ports import Table
from airflow_outbox.harvest.protocol.atomic_batches import Closure, Taken, lengths_in, transactions
from airflow_outbox.harvest.protocol.batches import Piece
from airflow_outbox.harvest.protocol.flush_tracking import FlushTracking
from airflow_outbox.harvest.protocol.parking import Caution
from airflow_outbox.harvest.protocol.recovery import require_page
from airflow_outbox.harvest.protocol.transaction_headers import Stamps
from airflow_outbox.harvest.protocol.windows import Windows
from airflow_outbox.harvest.read_buffer import ReadBuffer
from airflow_outbox.harvest.wal_flush import WalFlush
from airflow_outbox.values.fence import Fence
from airflow_outbox.values.pages import ID, OutboxRow, Page, PageSnapshot, total_size
from airflow_outbox.values.refusals import Cause, Refusal


class Reading:
    """One term's reading, from `first` on. With a `closure`, whole source transactions go on together.

    `last_drawn` is the highest id that the sequence is known to have given.
    """

    def __init__(
        self,
        first: PageSnapshot,
        *,
        fence: Fence,
        table: Table,
        pieces: ReadBuffer,
        tracking: FlushTracking,
        wal_flush: WalFlush,
        caution: Caution,
        closure: Closure | None,
        stamps: Stamps | None,
    ) -> None:
        self.last_drawn = fence.last_drawn
        self._windows = Windows(first, slots=fence.slots)
        self._fence = fence
        self._table = table
        self._pieces = pieces
        self._tracking = tracking
        self._wal_flush = wal_flush
        self._caution = caution
        self._closure = closure
        self._stamps = stamps
        self._file_number: int | None = None

    @property
    def is_amid_window(self) -> bool:
        """Whether the window has more rows to read."""
        return self._windows.next.within is not None

    @property
    def is_streaming(self) -> bool:
        """Whether a batch is under way that can't end with the rows read so far."""
        return self._closure is not None and self._closure.is_streaming

    async def read_page(self, *, wait: float = 0.0) -> bool:
        """Read the next page, and pass on what can be published. Return whether there were rows.

        A new window may `wait` this many seconds for rows. One statement, and cheap looks before it; a second one where
        the page holds parts of source transactions (`atomic`). Raises HistoryError, PostgresError.
        """
        pieces = self._pieces
        page = await self._table.read(
            self._windows.next,
            max_records=pieces.page_records,
            max_bytes=pieces.page_bytes,
            transaction_ids=self._closure is not None,
            wait=wait,
        )
        self._file_number = require_page(self._fence, page, file_number=self._file_number)
        self._wal_flush.seen(page.flushed)
        self._condemn_chosen_ids(page)
        read, (taken, refused) = page.rows, await self._take(page)
        rows = taken.rows
        if self._stamps is not None and self._closure is not None:
            rows = self._stamps.stamped(rows, self._closure.lengths)
        last_id = read[-1][0] if read else None
        within = self._windows.advance(
            snapshot=page.snapshot, last_id=last_id, complete=page.complete, cursors=page.cursors
        )
        self._tracking.send(len(rows))  # rows held back are sent before the window's end
        if not self.is_amid_window:
            self._tracking.end_window(within)
        piece = Piece(rows, within, page.written, taken.ends, refused, taken.streaming, taken.set_aside)
        pieces.hold(len(read), piece.bytes if rows is read else total_size(read))
        if rows:
            pieces.put(piece)
        return bool(read) or self.is_amid_window

    async def _take(self, page: Page) -> tuple[Taken, Mapping[int, Refusal]]:
        """Return the rows that go out after a page, and the source transactions that will not be published."""
        closure = self._closure
        if closure is None or not (page.rows or closure.held):
            return Taken(page.rows, ends=True), {}
        await self._learn(closure, page.rows, complete=page.complete)
        taken = closure.take(page.rows, complete=page.complete)
        return taken, closure.refused(transactions(taken.rows))

    async def _learn(self, closure: Closure, rows: Sequence[OutboxRow], *, complete: bool) -> None:
        """Learn the lengths of all transactions in these rows; all of them end in a window's last page."""
        unknown = closure.unknown(rows)
        lengths = {} if complete or not unknown else await self._table.lengths(unknown)
        closure.learn({**lengths_in(rows, unknown), **lengths})  # others may have deleted records meanwhile

    def _condemn_chosen_ids(self, page: Page) -> None:
        """Park records with ids that the sequence has not drawn: later it will give these ids to other records."""
        self.last_drawn = max(self.last_drawn, page.last_drawn)
        if page.highest_id > self.last_drawn:
            reason = (
                f"the id was chosen by its writer: it is above the sequence's last one, {self.last_drawn}. "
                "`airflow-outbox parked retry` publishes the record anyway"
            )
            chosen = [row[ID] for row in page.rows if row[ID] > self.last_drawn]
            self._caution.condemned[False].update(dict.fromkeys(chosen, Refusal(Cause.ID, reason)))
