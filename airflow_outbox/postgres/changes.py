"""Whether a window can have rows at all, by a statement that costs a fraction of reading one.

A snapshot decides which rows are visible. While Postgres' present snapshot is the one that the last window was within,
no transaction has ended since: nothing was committed, and the table is the same one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from airflow_outbox.values.pages import Page, PageSnapshot

_NAME = b"airflow_outbox_look"


class Changes:
    """The look of a reading connection before it reads. `query` is the statement `windows.look`.

    Looks are hundreds a second, so they bypass cursors, which cost three times as much. A look that fails counts as a
    change: the reading after it tells what is wrong.
    """

    def __init__(self, connection: psycopg.Connection[Any], query: bytes) -> None:
        self._connection = connection.pgconn
        self._query = query
        self._is_prepared = False
        self._last: Page | None = None

    def seen(self, page: Page) -> None:
        """A page was read."""
        self._last = replace(page, rows=(), complete=True)

    def nothing_since(self, reading: PageSnapshot, *, wait: float, interval: float) -> Page | None:
        """Return the empty page that reading would return, or None when there may be rows.

        Looks every `interval` seconds, for `wait` seconds; once if that is 0. It also returns when the log that was not
        on disk at the last page is, because a batch may wait for that.
        """
        last = self._last
        if last is None or reading.after is None or reading.within is not None:
            return None
        after, unflushed = str(reading.after).encode(), last.written > last.flushed
        deadline = time.monotonic() + wait
        while True:
            if wait:
                time.sleep(interval)
            snapshot, flushed = self._look()
            if snapshot != after:
                return None
            if (unflushed and flushed >= last.written) or time.monotonic() >= deadline:
                cursors = None if reading.cursors is None else ()
                self._last = replace(last, snapshot=reading.after, flushed=flushed, cursors=cursors)
                return self._last

    def _look(self) -> tuple[bytes | None, int]:
        try:
            if not self._is_prepared:
                self._connection.prepare(_NAME, self._query)
                self._is_prepared = True
            seen = self._connection.exec_prepared(_NAME, None)
        except psycopg.Error:  # the connection is closed
            return None, 0
        if seen.status != ExecStatus.TUPLES_OK:
            return None, 0
        return seen.get_value(0, 0), int(seen.get_value(0, 1) or 0)
