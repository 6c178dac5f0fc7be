"""Windows: a term reads each committed record of the outbox once and forgets none, without writing marks.

A *snapshot* of Postgres tells for every transaction whether it was visible when the snapshot was taken. A *window* is
the records of the transactions that became visible between two snapshots: *after* the earlier, *within* the later. The
windows of a term follow each other without a gap. The first comes after nothing and so is the whole table. Each next
one comes after the snapshot that the one before was within. So a record is found as soon as its transaction has
committed, regardless of how late that was, of its id, and of when the id was drawn. A transaction that stays open for
hours costs nothing.

    read, new window ──► page is all there is ──► window closed: `after` = its snapshot ──┐
         ▲          └──► page is full ──► read on above the last id, within the snapshot   │
         │                     ▲    └──── full ─┘   └── all there is ──► window closed ────┤
         └─────────────────────────────────────────────────────────────────────────────────┘

Invariants:

- `after` is None until the first window is closed, and never goes back.
- The pages of a window are disjoint and in id order; together they are the window.
- Every transaction's records lie in exactly one window, for they become visible together.

A shard among several reads only some slots. Within a window it goes on in each slot by itself, above the last id that
it has read there. The window ends when all of its slots have ended. A lane has one slot, so slots need no order.

A new term starts over with the whole table; the ledger tells what is published and not yet purged. While Postgres can't
remove dead rows, that would mean walking through millions of them. Then a term starts after the watermark that the last
one left in the fence row, since everything that it sees is published and purged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_outbox.values.pages import Cursors, PageSnapshot, first_cursors
from airflow_outbox.values.records import Snapshot


class Windows:
    """How far a term has read, of these `slots` (None: of all)."""

    def __init__(self, first: PageSnapshot | None = None, *, slots: Sequence[int] | None = None) -> None:
        self._slots = slots
        self.next = replace(first or PageSnapshot(), cursors=first_cursors(slots))

    def advance(
        self, *, snapshot: Snapshot, last_id: int | None, complete: bool, cursors: Cursors | None = None
    ) -> Snapshot:
        """Record a page that was read for `next`, and return the snapshot that the page is within.

        `snapshot` is the reading's own. `last_id` is the page's last (None: it is empty). `complete`: the window has
        no more rows. `cursors`: its slots that have.
        """
        within = self.next.within or snapshot
        if cursors:
            self.next = PageSnapshot(after=self.next.after, within=within, cursors=cursors)
        elif complete or last_id is None:
            self.next = PageSnapshot(after=within, cursors=first_cursors(self._slots))
        else:
            self.next = PageSnapshot(after=self.next.after, within=within, above=last_id)
        return within
