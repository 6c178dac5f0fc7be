"""The ledger: a compacted Kafka topic, one partition a shard. It tells which batches are committed on its cluster.

An entry is written in the same Kafka transaction as the batch that it describes, so it is there exactly when the batch
is. Its keys:

- `batch/<number>/<chunk>`: the exact ids of the batch's records, in published order, and where they went. Also the
  records that were parked, with the reason, or published from the parked table. An entry too large for one record of
  the ledger (scattered ids, many partitions, many reasons) takes several chunks.
  They are deleted (a null value) once Postgres has witnessed that the batch is purged.
- `first`, the first record of a transaction, without a value. It lets Kafka add the ledger's partition to the
  transaction while the batch is on its way, not when the rest waits for it. A producer's first transaction has none.
- `head`, the last record of each transaction: the last batch, the last one *witnessed*, the highest id that was ever
  published, and the batches whose entries are still to be deleted.

*Witnessed* means that Postgres has durably recorded, in the fence row, that the batch and all before it are purged.
The ledger says so only afterwards. Therefore, while both belong to one history:

    head.witnessed  ≤  fence row's witness  ≤  head.batch

and all batches above the fence row's witness still have their entries. Restoring the database to an earlier time
breaks this order, as does losing, shortening or exchanging the ledger; see `recovery`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import UUID

from airflow_outbox.errors import HistoryError, SchemaVersionError
from airflow_outbox.values.records import Snapshot

FIRST = "first"
HEAD = "head"
FORMAT = 2
READ_FORMATS = (1, 2)
"""Format 1, of earlier releases, does not name an entry's owner."""
LARGEST_ENTRY = 1_000_000
"""Bytes of the largest record in the ledger, as many as Kafka's client takes by default."""
_CHUNK_BYTES = 700_000  # with the snapshot, which is copied into every chunk, less than that
_RUN_BYTES = 44
_EXTENT_BYTES = 90  # beside the topic's name
_REASON_BYTES = 30  # beside the reason itself

Run = tuple[int, int]

LedgerRecord = tuple[str, str | None]
"""Key and value of a record in the ledger."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a batch's records of one partition are: first and last offset, and how many."""

    topic: str
    partition: int
    first: int
    last: int
    count: int

    def followed_by(self, later: Self) -> Extent:
        """Return the extent of both."""
        return replace(self, last=later.last, count=self.count + later.count)


@dataclass(frozen=True, slots=True)
class Parked:
    """Records that were set aside for one reason. Without a cause, they come after another in their lane."""

    cause: str | None
    reason: str | None
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed batch.

    Its *identity* is the outbox's id, incarnation, shard, view and number. Earlier releases did not write the outbox's
    id and the shard (None). `runs` are the ids of its records in published order: first and last of each run of
    consecutive ids. `parked` records were set aside instead; `unparked` ones were published from the parked table.
    """

    batch: int
    view: UUID
    incarnation: int
    snapshot: Snapshot
    runs: tuple[Run, ...]
    extents: tuple[Extent, ...]
    parked: tuple[Parked, ...] = ()
    unparked: tuple[Run, ...] = ()
    outbox_id: UUID | None = None
    shard: int | None = None

    def ids(self) -> list[int]:
        """The ids of the records that were published from the outbox."""
        return expanded(self.runs)

    def topics(self) -> Counter[str]:
        """The number of records by topic."""
        counts: Counter[str] = Counter()
        for extent in self.extents:
            counts[extent.topic] += extent.count
        return counts

    def records(self) -> list[LedgerRecord]:
        """The entry as records of the ledger, in chunks."""
        chunks = _chunked(self)
        return [
            (
                chunk_key(self.batch, number),
                _json(
                    format=FORMAT,
                    batch=self.batch,
                    chunk=number,
                    chunks=len(chunks),
                    **self._owner(),
                    view=str(self.view),
                    incarnation=self.incarnation,
                    snapshot=str(self.snapshot),
                    runs=chunk.runs,
                    unparked=chunk.unparked,
                    parked=chunk.parked,
                    extents=chunk.extents,
                ),
            )
            for number, chunk in enumerate(chunks)
        ]

    def packed(self) -> str:
        """The entry as one text, a JSON array: for Postgres, which keeps it for clusters that lack the batch."""
        return f"[{','.join(value for _, value in self.records() if value is not None)}]"

    @classmethod
    def unpacked(cls, chunks: Iterable[dict[str, Any]]) -> Entry:
        """The entry of such an array."""
        return _entry(list(chunks))

    def _owner(self) -> dict[str, object]:
        return {} if self.outbox_id is None else {"outbox_id": str(self.outbox_id), "shard": self.shard}


@dataclass(frozen=True, slots=True)
class Head:
    """How far the ledger is: see the module's description.

    `beats` counts how often leaders had written the fence row by then. `kept` are the entries not yet deleted: number
    and chunks. `membership` is the number of the one in which it was written; the first one is not named.
    """

    outbox_id: UUID
    incarnation: int
    view: UUID
    batch: int
    witnessed: int
    highest_id: int
    beats: int
    kept: tuple[tuple[int, int], ...] = ()
    membership: int = 1

    def record(self) -> LedgerRecord:
        membership = {} if self.membership == 1 else {"membership": self.membership}
        return HEAD, _json(
            format=FORMAT,
            outbox_id=str(self.outbox_id),
            incarnation=self.incarnation,
            view=str(self.view),
            batch=self.batch,
            witnessed=self.witnessed,
            highest_id=self.highest_id,
            beats=self.beats,
            kept=self.kept,
            **membership,
        )


Unread = tuple[int, str]
"""The offset of a ledger record that no release has written, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The contents of a ledger: its topic's id, the offset of its end, its head (None: there is none) with its offset,
    and the entries that were read, by number.
    """

    topic_id: str
    end: int
    head: Head | None
    head_offset: int
    entries: tuple[Entry, ...]

    @classmethod
    def read(
        cls,
        *,
        topic_id: str,
        end: int,
        records: Iterable[tuple[int, str, str | None]],
        unread: list[Unread] | None = None,
    ) -> Self:
        """Parse committed records (offset, key, value), oldest first.

        Raises SchemaVersionError for a record of a later release, and HistoryError for one that no release has
        written, unless `unread` takes it.
        """
        latest: dict[str, tuple[int, str | None]] = {key: (offset, value) for offset, key, value in records}
        head_offset, value = latest.pop(HEAD, (0, None))
        head = None
        if value is not None:
            with _noted(unread, head_offset):
                head = _head(_parsed(HEAD, value))
        chunks: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for key, (offset, value) in latest.items():
            if value is not None:
                with _noted(unread, offset):
                    chunk = _parsed(key, value)
                    chunks.setdefault(int(chunk["batch"]), []).append((offset, chunk))
        entries: list[Entry] = []
        for _, found in sorted(chunks.items()):
            with _noted(unread, max(offset for offset, _ in found)):
                entries.append(_entry([chunk for _, chunk in found]))
        return cls(topic_id, end, head, head_offset, tuple(entries))


def chunk_key(batch: int, chunk: int) -> str:
    """The key of a part of an entry."""
    return f"batch/{batch}/{chunk}"


def runs(ids: Sequence[int]) -> tuple[Run, ...]:
    """Return ids as first and last of each run of consecutive ones. Exact: no id between two runs belongs to them."""
    if ids and ids[-1] - ids[0] == len(ids) - 1 and list(ids) == list(range(ids[0], ids[-1] + 1)):
        return ((ids[0], ids[-1]),)
    return tuple(_runs(ids))


def expanded(runs: Iterable[Run]) -> list[int]:
    """The ids of runs."""
    ids: list[int] = []
    for first, last in runs:
        if first == last:  # as most are in one shard of several
            ids.append(first)
        else:
            ids += range(first, last + 1)
    return ids


@dataclass(slots=True)
class _Chunk:
    """The contents of one record of an entry, and the bytes left in it."""

    runs: list[Run] = field(default_factory=list)
    unparked: list[Run] = field(default_factory=list)
    parked: list[tuple[str | None, str | None, Sequence[Run]]] = field(default_factory=list)
    extents: list[list[object]] = field(default_factory=list)
    room: int = field(default_factory=lambda: _CHUNK_BYTES)


def _chunked(entry: Entry) -> list[_Chunk]:
    """Divide an entry into chunks, at least one. A part that is larger than a chunk has one for itself."""
    chunks = [_Chunk()]

    def chunk_for(size: int) -> _Chunk:
        if chunks[-1].room < size:
            chunks.append(_Chunk())
        chunks[-1].room -= size
        return chunks[-1]

    def parts(runs: Sequence[Run], *, with_each: int = 0) -> Iterator[tuple[_Chunk, Sequence[Run]]]:
        while runs:
            chunk = chunk_for(with_each + _RUN_BYTES)
            count = 1 + max(0, chunk.room) // _RUN_BYTES
            part, runs = runs[:count], runs[count:]
            chunk.room -= (len(part) - 1) * _RUN_BYTES
            yield chunk, part

    for chunk, part in parts(entry.runs):
        chunk.runs += part
    for chunk, part in parts(entry.unparked):
        chunk.unparked += part
    for parked in entry.parked:
        for chunk, part in parts(parked.runs, with_each=_REASON_BYTES + len(json.dumps(parked.reason))):
            chunk.parked.append((parked.cause, parked.reason, part))
    for extent in entry.extents:
        chunk_for(_EXTENT_BYTES + len(extent.topic)).extents.append(
            [extent.topic, extent.partition, extent.first, extent.last, extent.count]
        )
    return chunks


def _runs(ids: Sequence[int]) -> Iterator[Run]:
    first = last = None
    for number in ids:
        if last is None or first is None:
            first = last = number
        elif number == last + 1:
            last = number
        else:
            yield first, last
            first = last = number
    if first is not None and last is not None:
        yield first, last


def _entry(parts: list[dict[str, Any]]) -> Entry:
    parts.sort(key=lambda part: int(part["chunk"]))
    first = parts[0]
    if len(parts) != first["chunks"]:
        raise ValueError(f"batch {first['batch']} has {len(parts)} of {first['chunks']} chunks")
    parked: dict[tuple[str | None, str | None], list[Run]] = {}
    for part in parts:
        for cause, reason, found in part["parked"]:
            parked.setdefault((cause, reason), []).extend(_joined([found]))
    return Entry(
        batch=int(first["batch"]),
        view=UUID(first["view"]),
        incarnation=int(first["incarnation"]),
        snapshot=Snapshot.parse(first["snapshot"]),
        runs=_joined(part["runs"] for part in parts),
        extents=tuple(Extent(*extent) for part in parts for extent in part["extents"]),
        parked=tuple(Parked(cause, reason, tuple(found)) for (cause, reason), found in parked.items()),
        unparked=_joined(part["unparked"] for part in parts),
        outbox_id=UUID(first["outbox_id"]) if "outbox_id" in first else None,
        shard=int(first["shard"]) if "shard" in first else None,
    )


def _joined(parts: Iterable[Iterable[Sequence[int]]]) -> tuple[Run, ...]:
    return tuple((int(first), int(last)) for part in parts for first, last in part)


def _head(values: dict[str, Any]) -> Head:
    return Head(
        outbox_id=UUID(values["outbox_id"]),
        incarnation=int(values["incarnation"]),
        view=UUID(values["view"]),
        batch=int(values["batch"]),
        witnessed=int(values["witnessed"]),
        highest_id=int(values["highest_id"]),
        beats=int(values["beats"]),
        kept=tuple((int(batch), int(chunks)) for batch, chunks in values["kept"]),
        membership=int(values.get("membership", 1)),
    )


@contextmanager
def _noted(unread: list[Unread] | None, offset: int) -> Iterator[None]:
    """Raise HistoryError for a record that no release has written, or note it in `unread`."""
    try:
        try:
            yield
        except (LookupError, TypeError, ValueError) as error:
            raise HistoryError(f"the ledger holds something that no release has written ({error!r})") from error
    except HistoryError as error:
        if unread is None:
            raise
        unread.append((offset, error.difference))


def _parsed(key: str, value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
        version = parsed["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise HistoryError(f"the ledger's record {key} was not written by airflow-outbox") from error
    if version not in READ_FORMATS:
        raise SchemaVersionError(
            f"the ledger's record {key} has format {version}, but this release knows {FORMAT}. "
            "Install a newer airflow-outbox"
        )
    return dict(parsed)


def _json(**values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))
