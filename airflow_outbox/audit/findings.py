"""The findings of an audit: counts, the first examples of each kind, and whether all is well."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice


class FindingKind(StrEnum):
    """A way in which a topic can differ from what was stashed."""

    MISSING = "missing"
    """Stashed, due, and not in Kafka."""
    DOUBLED = "doubled"
    """In Kafka more often than it was stashed."""
    REORDERED = "reordered"
    """In Kafka behind a record of the same topic and key that was stashed later, or in another partition."""
    TORN = "torn"
    """Part of a source transaction is in Kafka and part is missing."""
    FOREIGN = "foreign"
    """In Kafka, but nothing equal was stashed under its topic and key."""


@dataclass(frozen=True, slots=True)
class Clue:
    """An example as the comparison knows it: only ids of rows, places in Kafka and transaction ids.

    `other_id` is the later record that came before this one; `other_place` is the place of the key's previous record.
    """

    kind: FindingKind
    id: int | None = None
    place: int | None = None
    other_id: int | None = None
    other_place: int | None = None
    transaction_id: int | None = None
    records: int | None = None


def first_clues(clues: Iterable[Clue], *, limit: int) -> tuple[Clue, ...]:
    """The first clues of each kind, in the order in which kinds and clues are given."""
    found = sorted(clues, key=_order)
    return tuple(clue for kind in FindingKind for clue in islice((clue for clue in found if clue.kind is kind), limit))


def _order(clue: Clue) -> int:
    by = {FindingKind.DOUBLED: clue.place, FindingKind.FOREIGN: clue.place, FindingKind.TORN: clue.transaction_id}.get(
        clue.kind, clue.id
    )
    assert by is not None
    return by


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of a comparison, in records; `torn` counts source transactions.

    `waiting`, `expired` and `later` are no faults. The first two count rows that are not in Kafka: they wait in the
    outbox or are parked, or Kafka may have removed them since. `later` counts records in Kafka that may have been
    stashed after the rows were read.
    """

    stashed: int = 0
    arrived: int = 0
    missing: int = 0
    doubled: int = 0
    reordered: int = 0
    torn: int = 0
    foreign: int = 0
    waiting: int = 0
    expired: int = 0
    later: int = 0
    clues: tuple[Clue, ...] = ()

    def of(self, kind: FindingKind) -> int:
        return int(getattr(self, kind.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example in the words of the table and the topics; `what` says what is wrong with it.

    `id`, `key` and `transaction_id` are the row's; `topic`, `partition` and `offset` are those of the record in Kafka.
    `shard` is the one among several that harvests the row's topic and key now. Each is None where there is none. A key
    that is not UTF-8 is shown with escapes.
    """

    kind: FindingKind
    what: str
    id: int | None = None
    topic: str | None = None
    key: str | None = None
    partition: int | None = None
    offset: int | None = None
    transaction_id: int | None = None
    shard: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The scope of an audit and its findings. `faults` are the kinds that were found and are not allowed."""

    table: str
    topics: tuple[str, ...]
    findings: Findings
    examples: tuple[Example, ...]
    faults: tuple[FindingKind, ...]

    @property
    def is_well(self) -> bool:
        return not self.faults

    def as_dict(self) -> dict[str, object]:
        """Return the report as JSON and YAML show it: counts by name, and examples by kind without unknown fields."""
        counts = {
            name: getattr(self.findings, name)
            for name in ("stashed", "arrived", *(kind.value for kind in FindingKind), "waiting", "expired", "later")
        }
        return {
            "well": self.is_well,
            "table": self.table,
            "topics": list(self.topics),
            "faults": [kind.value for kind in self.faults],
            **counts,
            "examples": {
                kind.value: [_known(example) for example in self.examples if example.kind is kind]
                for kind in FindingKind
                if self.findings.of(kind)
            },
        }


def faults(findings: Findings, *, allowed: Collection[FindingKind]) -> tuple[FindingKind, ...]:
    """The kinds that were found and are not allowed."""
    return tuple(kind for kind in FindingKind if findings.of(kind) and kind not in allowed)


def _known(example: Example) -> Mapping[str, object]:
    names = ("what", "id", "topic", "key", "partition", "offset", "transaction_id", "shard")
    return {name: value for name in names if (value := getattr(example, name)) is not None}
