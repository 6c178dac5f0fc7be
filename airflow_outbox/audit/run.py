"""An audit from its beginning to its report, except the comparison itself.

The order of the steps keeps it right while the outbox is in use:

1. Note the topics' ends.
2. Take the rows' snapshot. Every record before those ends had been stashed by then, so its row is in the snapshot.
3. Note the ends again, and read everything up to them. A row that was purged from the outbox before the snapshot had
   been published by then, so its record lies before these ends. A row that is neither there nor waiting in the outbox
   is missing. A record between the two ends is *late*: its row may be newer than the snapshot.
4. Note what the topics have lost. This comes after the reading, to include what was lost during it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from psycopg import IsolationLevel

from airflow_outbox.audit.findings import AuditReport, Clue, Example, FindingKind, Findings, faults
from airflow_outbox.audit.fingerprints import slot_and_offset
from airflow_outbox.audit.table import StashedTable, TableSnapshot
from airflow_outbox.audit.topics import Span, ends, horizons, spans
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import composed


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """The request for an audit. `table` holds what was stashed; `topics` limits the audit to these, unless it is empty.

    `allowed`: kinds that are no fault; `ignored_headers`: names of headers that don't count; `examples`: how many of
    each kind.
    """

    table: str
    topics: tuple[str, ...] = ()
    allowed: frozenset[FindingKind] = frozenset({FindingKind.FOREIGN})
    ignored_headers: frozenset[str] = field(default_factory=frozenset)
    examples: int = 5


class AuditRun:
    """One audit's view of Postgres and Kafka. A context manager, with a transaction open while it lasts."""

    def __init__(self, config: HarvestConfig, request: AuditRequest) -> None:
        self.request = request
        self.kafka = dict(config.kafka)
        self.data_source = config.data_source
        self.outbox = config.name
        self.name = OutboxName.parse(request.table)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Raises ConfigurationError, OutboxMissingError, PostgresError, KafkaError."""
        with ExitStack() as stack:
            connection = stack.enter_context(connect(self.data_source, purpose="audit"))
            connection.execute(_patience())
            self.table = StashedTable(connection, self.name, self.outbox)
            self.topics = self.request.topics or self.table.topics()
            if not self.topics:
                raise ConfigurationError(f"{self.name} is empty: there is nothing to audit. Name another table")
            before = ends(self.kafka, self.topics)
            _require_known(self.request.topics, [*self.table.topics(), *(topic for topic, _ in before)], self.name)
            connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
            stack.enter_context(connection.transaction())
            self.snapshot = self.table.snapshot()
            self.pinned = self.table.asks_for_partitions()
            self.spans: list[Span] = spans(before, ends(self.kafka, self.topics))
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def reading(self) -> TableSnapshot:
        """How to read the rows; ask after the topics have been read. Raises KafkaError."""
        return TableSnapshot(self.topics, self.request.ignored_headers, horizons(self.kafka, self.topics))

    def report(self, findings: Findings) -> AuditReport:
        """The findings in words. Raises PostgresError."""
        ids = {one for clue in findings.clues for one in (clue.id, clue.other_id) if one is not None}
        named = self.table.named(ids) if ids else {}
        return AuditReport(
            table=str(self.name),
            topics=tuple(self.topics),
            findings=findings,
            examples=tuple(self._example(clue, named) for clue in findings.clues),
            faults=faults(findings, allowed=self.request.allowed),
        )

    def _example(self, clue: Clue, named: dict[int, tuple[str, str, int | None]]) -> Example:
        nothing = (None, None, None)
        topic, key, shard = named.get(clue.id, nothing) if clue.id is not None else nothing
        partition = offset = None
        if clue.place is not None:
            topic, partition, offset = self._found_at(clue.place)
        return Example(
            kind=clue.kind,
            what=self._in_words(clue),
            id=clue.id,
            topic=topic,
            key=key,
            partition=partition,
            offset=offset,
            transaction_id=clue.transaction_id,
            shard=shard,
        )

    def _in_words(self, clue: Clue) -> str:
        match clue.kind:
            case FindingKind.MISSING:
                return f"record {clue.id} is not in Kafka"
            case FindingKind.DOUBLED:
                return f"record {clue.id} is in Kafka once more"
            case FindingKind.REORDERED if clue.other_id is not None:
                return f"record {clue.id} came after record {clue.other_id}, which was stashed later"
            case FindingKind.REORDERED if clue.other_place is not None:
                _, partition, offset = self._found_at(clue.other_place)
                return (
                    f"record {clue.id} is in another partition than its key's previous record, "
                    f"which is at partition {partition}, offset {offset}"
                )
            case FindingKind.TORN:
                return f"transaction {clue.transaction_id} lacks {clue.records} of its records, first record {clue.id}"
            case _:
                return "no such record was stashed"

    def _found_at(self, place: int) -> tuple[str, int, int]:
        slot, offset = slot_and_offset(place)
        span = self.spans[slot]
        return span.topic, span.partition, offset


def _require_known(asked: Iterable[str], known: Collection[str], table: OutboxName) -> None:
    """Raise ConfigurationError for a topic that is nowhere: an audit of it would find nothing wrong."""
    for topic in asked:
        if topic not in known:
            raise ConfigurationError(f"topic {topic} is neither in {table} nor in Kafka. Correct its name")


def _patience() -> Any:
    return composed("audit.be_patient")
