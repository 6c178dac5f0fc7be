"""The ledger: a compacted Kafka topic, a partition a shard, that tells which batches are committed on its cluster.

An entry is written in the same Kafka transaction as the batch that it describes, so it is there exactly when the batch
is. Its keys:

- `batch/<number>/<chunk>`: the exact ids of the batch's records, in published order, and where they went; and which
  records were parked, with the reason, or published from among the parked ones. Many scattered ids take several chunks.
  They are deleted (a null value) once Postgres has witnessed that the batch is purged.
- `first`, the first record of a transaction, without a value: Kafka adds the ledger's partition to the transaction
  while the batch is on its way, and not when the rest waits for it. A producer's first transaction has none.
- `head`, the last record of each transaction: the last batch, the last one *witnessed*, the highest id that was ever
  published, and the batches whose entries are still to be deleted.

*Witnessed* means that Postgres has durably recorded, in the fence row, that the batch and all before it are purged.
The ledger says so only afterwards. Therefore, as long as both tell of one history:

    head.witnessed  ≤  fence row's witness  ≤  head.batch

and all batches above the fence row's witness still have their entries. A database that was restored to an earlier time,
or a ledger that was lost, shortened or exchanged, breaks the order; see `recovery`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self
from uuid import UUID

from airflow_outbox.errors import HistoryError, SchemaVersionError
from airflow_outbox.records import Snapshot

FIRST = "first"
HEAD = "head"
FORMAT = 1
_RUNS_A_CHUNK = 20_000  # of at most some 40 bytes each: below the 1 MB that a broker takes by default

Run = tuple[int, int]

LedgerRecord = tuple[str, str | None]
"""Key and value of a record in the ledger."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a batch's records of one partition are: offsets of the first and the last, and how many."""

    topic: str
    partition: int
    first: int
    last: int
    count: int

    def followed_by(self, later: Self) -> Extent:
        """The extent of both."""
        return replace(self, last=later.last, count=self.count + later.count)


@dataclass(frozen=True, slots=True)
class Parked:
    """Records that were set aside for one reason; without a cause, because they come after another in their lane."""

    cause: str | None
    reason: str | None
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed batch.

    `runs` are the ids of its records in published order: first and last of each run of consecutive ids. `parked` are
    records that were set aside instead, `unparked` ids of records that were published from the parked table.
    """

    batch: int
    view: UUID
    incarnation: int
    snapshot: Snapshot
    runs: tuple[Run, ...]
    extents: tuple[Extent, ...]
    parked: tuple[Parked, ...] = ()
    unparked: tuple[Run, ...] = ()

    def ids(self) -> list[int]:
        """The ids of the records that were published from the outbox."""
        return expanded(self.runs)

    def topics(self) -> Counter[str]:
        """How many records of each topic are in the batch."""
        counts: Counter[str] = Counter()
        for extent in self.extents:
            counts[extent.topic] += extent.count
        return counts

    def records(self) -> list[LedgerRecord]:
        """The entry as records of the ledger, in chunks."""
        chunks = list(_chunked([self.runs, self.unparked, *(parked.runs for parked in self.parked)]))
        return [
            (
                chunk_key(self.batch, number),
                _json(
                    format=FORMAT,
                    batch=self.batch,
                    chunk=number,
                    chunks=len(chunks),
                    view=str(self.view),
                    incarnation=self.incarnation,
                    snapshot=str(self.snapshot),
                    runs=chunk[0],
                    unparked=chunk[1],
                    parked=[
                        [parked.cause, parked.reason, part] for parked, part in zip(self.parked, chunk[2:], strict=True)
                    ],
                    extents=[list(asdict(extent).values()) for extent in self.extents] if number == 0 else [],
                ),
            )
            for number, chunk in enumerate(chunks)
        ]


@dataclass(frozen=True, slots=True)
class Head:
    """How far the ledger is: see the module's description.

    `beats` is how often leaders had written the fence row by then, `kept` are the entries that stand: number and
    chunks.
    """

    outbox_id: UUID
    incarnation: int
    view: UUID
    batch: int
    witnessed: int
    highest_id: int
    beats: int
    kept: tuple[tuple[int, int], ...] = ()

    def record(self) -> LedgerRecord:
        values = {name: str(value) if isinstance(value, UUID) else value for name, value in asdict(self).items()}
        return HEAD, _json(format=FORMAT, **values)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a ledger says: its topic's id, the offset of its end, its head (None: there is none) and where that is, and
    the entries that were read, by number.
    """

    topic_id: str
    end: int
    head: Head | None
    head_offset: int
    entries: tuple[Entry, ...]

    @classmethod
    def read(cls, *, topic_id: str, end: int, records: Iterable[tuple[int, str, str | None]]) -> Self:
        """Make sense of committed records (offset, key, value), oldest first.

        Raises HistoryError for what no release has written, SchemaVersionError for what a later one has.
        """
        latest: dict[str, str | None] = {}
        head_offset = 0
        for offset, key, value in records:
            latest[key] = value
            if key == HEAD:
                head_offset = offset
        head = latest.pop(HEAD, None)
        chunks: dict[int, list[dict[str, Any]]] = {}
        for key, value in latest.items():
            if value is not None:
                chunk = _parsed(key, value)
                chunks.setdefault(chunk["batch"], []).append(chunk)
        try:
            entries = [_entry(parts) for _, parts in sorted(chunks.items())]
            parsed = None if head is None else _head(_parsed(HEAD, head))
            return cls(topic_id, end, parsed, head_offset, tuple(entries))
        except (KeyError, TypeError, ValueError) as error:
            raise HistoryError(f"the ledger holds what no release has written ({error!r})") from error


def chunk_key(batch: int, chunk: int) -> str:
    """The key of a part of an entry."""
    return f"batch/{batch}/{chunk}"


def runs(ids: Sequence[int]) -> tuple[Run, ...]:
    """Ids as first and last of each run of consecutive ones. Exact: nothing between two runs is meant."""
    if ids and ids[-1] - ids[0] == len(ids) - 1 and list(ids) == list(range(ids[0], ids[-1] + 1)):
        return ((ids[0], ids[-1]),)
    return tuple(_runs(ids))


def expanded(runs: Iterable[Run]) -> list[int]:
    """The ids of runs."""
    return [number for first, last in runs for number in range(first, last + 1)]


def _chunked(groups: Sequence[Sequence[Run]]) -> Iterator[list[Sequence[Run]]]:
    """Groups of runs in chunks of as many groups, with a bounded number of runs in each chunk; at least one chunk."""
    longest = max(len(group) for group in groups)
    share = max(1, _RUNS_A_CHUNK // len(groups))
    for at in range(0, max(longest, 1), share):
        yield [group[at : at + share] for group in groups]


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
    return Entry(
        batch=int(first["batch"]),
        view=UUID(first["view"]),
        incarnation=int(first["incarnation"]),
        snapshot=Snapshot.parse(first["snapshot"]),
        runs=_joined(part["runs"] for part in parts),
        extents=tuple(Extent(*extent) for extent in first["extents"]),
        parked=tuple(
            Parked(cause, reason, _joined(part["parked"][place][2] for part in parts))
            for place, (cause, reason, _) in enumerate(first["parked"])
        ),
        unparked=_joined(part["unparked"] for part in parts),
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
    )


def _parsed(key: str, value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
        version = parsed["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise HistoryError(f"the ledger's record {key} is none of ours") from error
    if version != FORMAT:
        raise SchemaVersionError(
            f"the ledger's record {key} is of format {version}, this release knows {FORMAT}: "
            "install a newer airflow-outbox"
        )
    return dict(parsed)


def _json(**values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))
