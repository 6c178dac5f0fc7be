"""The comparison itself: what was stashed against what arrived, in bounded memory.

It takes two steps:

1. Each lane's rows, in the order of their ids, are compared with its records, in the order of their offsets. Nearly all
   lanes agree record by record, and are done.
2. The other lanes, if any, are examined. How often each content was stashed and arrived shows what is missing, doubled
   or foreign. The ids along the offsets show what is reordered. The source transactions of missing records show what is
   torn.

SQLite does all the sorting, in a temporary file. So memory is bounded, however many records there are and however they
are spread over keys. The file takes about 45 bytes a record (twice that for the lanes that don't agree).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from airflow_outbox.audit.findings import Clue, FindingKind, Findings
from airflow_outbox.audit.fingerprints import NO_PIN, Arrived, Stashed
from airflow_outbox.sql import statement

_END: tuple[int, ...] = (1 << 63, 0, 0, 0)  # behind every lane


class Comparison:
    """Add rows and records in any order, then call `findings`. A context manager: on exit its file is removed.

    All rows and records of a lane must be in one comparison; different lanes may be in different ones. `pinned` says
    whether any row asks for a partition. The file is where TMPDIR says.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._folder = TemporaryDirectory(prefix="airflow-outbox-audit-")
        self._database = sqlite3.connect(Path(self._folder.name) / "comparison", isolation_level=None)
        self._database.executescript(_statement("bound_memory"))
        self._database.executescript(_statement("create"))

    def add_stashed(self, rows: Iterable[Stashed]) -> None:
        self._add("add_stashed", rows)

    def add_arrived(self, records: Iterable[Arrived]) -> None:
        if not self._pinned:
            records = (record._replace(partition=NO_PIN) for record in records)
        self._add("add_arrived", records)

    def _add(self, statement: str, values: Iterable[tuple[Any, ...]]) -> None:
        self._database.execute("BEGIN")
        self._database.executemany(_statement(statement), values)
        self._database.execute("COMMIT")

    def findings(self, *, examples: int) -> Findings:
        """Compare; `examples` is how many clues of each kind to give. Call it once, after everything is added."""
        if self._pinned:
            self._database.executescript(_statement("unpin"))
        self._add("add_doubtful", self._doubtful_lanes())
        for step in ("put_in_doubt", "tally", "find_absent", "pair", "find_reordered", "find_incomplete", "find_torn"):
            self._database.executescript(_statement(step))
        stashed, arrived = self._row("count_all")
        missing, doubled, foreign, waiting, expired, later = self._row("count")
        return Findings(
            stashed=stashed,
            arrived=arrived,
            missing=missing,
            doubled=doubled,
            foreign=foreign,
            waiting=waiting,
            expired=expired,
            later=later,
            reordered=self._row("count_reordered")[0],
            torn=self._row("count_torn")[0],
            clues=tuple(self._clues(examples)),
        )

    def incomplete(self) -> Iterator[tuple[int, int, int, int]]:
        """After `findings`: the source transactions that lack a record without an excuse.

        Each comes as its id, its number of such records, the id of the first of them, and its number of absent records.
        """
        yield from self._database.execute(_statement("incomplete"))

    def _doubtful_lanes(self) -> Iterator[tuple[int]]:
        """The lanes whose records differ from their rows, in content or order, or lie in several partitions."""
        with (
            closing(self._database.execute(_statement("stashed_in_order"))) as stashed,
            closing(self._database.execute(_statement("arrived_in_order"))) as arrived,
        ):
            row, record = next(stashed, _END), next(arrived, _END)
            while row is not _END or record is not _END:
                lane = min(row[:2], record[:2])
                slot = record[3]
                while row == record[:3] and row[:2] == lane and record[3] == slot:
                    row, record = next(stashed, _END), next(arrived, _END)
                if lane in (row[:2], record[:2]):
                    yield (lane[0],)
                    while row[:2] == lane:
                        row = next(stashed, _END)
                    while record[:2] == lane:
                        record = next(arrived, _END)

    def _clues(self, limit: int) -> Iterator[Clue]:
        def first(kind: FindingKind) -> Iterator[tuple[Any, ...]]:
            return self._database.execute(_statement(f"{kind}_examples"), (limit,))

        for (row,) in first(FindingKind.MISSING):
            yield Clue(FindingKind.MISSING, id=row)
        for row, place in first(FindingKind.DOUBLED):
            yield Clue(FindingKind.DOUBLED, id=row, place=place)
        for row, place, other_id, other_place in first(FindingKind.REORDERED):
            yield Clue(FindingKind.REORDERED, id=row, place=place, other_id=other_id, other_place=other_place)
        for transaction_id, records, row in first(FindingKind.TORN):
            yield Clue(FindingKind.TORN, transaction_id=transaction_id, records=records, id=row)
        for (place,) in first(FindingKind.FOREIGN):
            yield Clue(FindingKind.FOREIGN, place=place)

    def _row(self, statement: str) -> tuple[int, ...]:
        row: tuple[int, ...] = self._database.execute(_statement(statement)).fetchone()
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()
        self._folder.cleanup()


def _statement(name: str) -> str:
    return statement(f"comparison.{name}")
