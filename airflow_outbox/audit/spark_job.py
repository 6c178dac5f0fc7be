"""The audit as a Spark job: the same comparison, on executors.

Each task reads a span of a topic, or a range of ids in the snapshot that the driver's transaction lends. It makes
fingerprints of them: records never leave the task. Spark brings the fingerprints of a lane together, and compares each
of its partitions by a `Comparison` of its own. Source transactions that lack something are examined once more, since
their records may be in any partition.

Executors need confluent-kafka, psycopg, pyarrow and this package, and reach both Postgres and Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
from psycopg import IsolationLevel
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_outbox.audit.cli import audit_command
from airflow_outbox.audit.comparison import Comparison
from airflow_outbox.audit.findings import AuditReport, Clue, FindingKind, Findings, first_clues
from airflow_outbox.audit.fingerprints import Arrived, Stashed
from airflow_outbox.audit.run import AuditRequest, AuditRun
from airflow_outbox.audit.table import StashedTable, TableSnapshot
from airflow_outbox.audit.topics import Span, arrived
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.leaving import leave_after
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName

_RECORDS_A_TASK = 1_000_000
_RECORDS_A_BATCH = 10_000

_PRINTS = "lane long, pin int, content long, position long, transaction_id long, mark int, is_row boolean"
_PRINT_TYPES = pa.schema(
    [
        ("lane", pa.int64()),
        ("pin", pa.int32()),
        ("content", pa.int64()),
        ("position", pa.int64()),
        ("transaction_id", pa.int64()),
        ("mark", pa.int32()),
        ("is_row", pa.bool_()),
    ]
)
_CLUE_NUMBERS = ("id", "place", "other_id", "other_place", "transaction_id", "records")
_COUNTS = tuple(field.name for field in fields(Findings) if field.name != "clues")
# `subject`: a count's name, `incomplete`, or the kind of a clue.
_FOUND = "subject string, count long, absent long, " + ", ".join(f"{name} long" for name in _CLUE_NUMBERS)
_FOUND_TYPES = pa.schema(
    [("subject", pa.string()), *((name, pa.int64()) for name in ("count", "absent", *_CLUE_NUMBERS))]
)

Print = tuple[int, int, int, int, int | None, int, bool]


def audit_on_spark(spark: SparkSession, config: HarvestConfig, request: AuditRequest) -> AuditReport:
    """Compare a table of what was stashed with its topics, on Spark's executors.

    Raises ConfigurationError, OutboxMissingError, PostgresError, KafkaError, and Spark's own errors.
    """
    with AuditRun(config, request) as scene:
        spans = [piece for span in scene.spans for piece in span.cut(_RECORDS_A_TASK)]
        records = _read(spark, spans, partial(_prints_of_records, scene.kafka, request.ignored_headers))
        records.persist(StorageLevel.DISK_ONLY).count()  # read everything before looking for what was lost
        first, last = scene.table.ids()
        ranges = [(low, min(low + _RECORDS_A_TASK - 1, last)) for low in range(first, last + 1, _RECORDS_A_TASK)]
        source = (scene.data_source, scene.name, scene.outbox, scene.snapshot, scene.reading())
        rows = _read(spark, ranges, partial(_prints_of_rows, *source)).persist(StorageLevel.DISK_ONLY)

        comparisons = max(spark.sparkContext.defaultParallelism, len(spans) + len(ranges))
        compare = partial(_compare, pinned=scene.pinned, examples=request.examples)
        found = records.union(rows).repartition(comparisons, "lane").mapInArrow(compare, _FOUND)
        found.persist(StorageLevel.DISK_ONLY)
        return scene.report(_together(found, rows, examples=request.examples))


def _read(spark: SparkSession, pieces: Sequence[Any], prints: Callable[[Any], Iterator[Print]]) -> DataFrame:
    """Read the fingerprints of the pieces, one task a piece."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for (number,) in zip(*batch.to_pydict().values(), strict=True):
                of_piece = prints(pieces[number])
                while chunk := list(islice(of_piece, _RECORDS_A_BATCH)):
                    columns = zip(*chunk, strict=True)
                    arrays = [pa.array(column, kind) for column, kind in zip(columns, _PRINT_TYPES.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=_PRINT_TYPES)

    return spark.range(0, len(pieces), 1, max(1, len(pieces))).mapInArrow(read, _PRINTS)


def _prints_of_records(kafka: dict[str, Any], ignored: frozenset[str], span: Span) -> Iterator[Print]:
    for record in arrived(kafka, [span], ignored_headers=ignored):
        yield record.lane, record.partition, record.content, record.place, None, record.late, False


def _prints_of_rows(
    data_source: str, name: OutboxName, outbox: OutboxName, snapshot: str, reading: TableSnapshot, ids: tuple[int, int]
) -> Iterator[Print]:
    with closing(connect(data_source, purpose="audit")) as connection:
        table = StashedTable(connection, name, outbox)
        connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
        with connection.transaction():
            table.borrow(snapshot)
            for row in table.rows(reading, first=ids[0], last=ids[1]):
                yield row.lane, row.pin, row.content, row.id, row.transaction_id, row.excuse, True


def _compare(batches: Iterable[pa.RecordBatch], *, pinned: bool, examples: int) -> Iterator[pa.RecordBatch]:
    """The counts, clues and incomplete transactions of the lanes of one partition."""
    with Comparison(pinned=pinned) as comparison:
        for batch in batches:
            prints = list(zip(*batch.to_pydict().values(), strict=True))
            comparison.add_stashed(Stashed(*values) for *values, is_row in prints if is_row)
            comparison.add_arrived(
                Arrived(lane, pin, content, position, mark)
                for lane, pin, content, position, _, mark, is_row in prints
                if not is_row
            )
        findings = comparison.findings(examples=examples)
        told = [{"subject": name, "count": getattr(findings, name)} for name in _COUNTS]
        told += [{**asdict(clue), "subject": clue.kind.value} for clue in findings.clues]
        yield pa.RecordBatch.from_pylist(told, schema=_FOUND_TYPES)
        incomplete = comparison.incomplete()
        while chunk := list(islice(incomplete, _RECORDS_A_BATCH)):
            names = ("transaction_id", "count", "id", "absent")
            told = [{"subject": "incomplete", **dict(zip(names, values, strict=True))} for values in chunk]
            yield pa.RecordBatch.from_pylist(told, schema=_FOUND_TYPES)


def _together(found: DataFrame, rows: DataFrame, *, examples: int) -> Findings:
    sums = found.where(F.col("subject").isin(*_COUNTS) & F.col("count").isNotNull()).groupBy("subject")
    counts = {name: count for name, count in sums.agg(F.sum("count")).collect() if name in _COUNTS}
    told = found.where(F.col("subject").isin(*(kind.value for kind in FindingKind)) & F.col("count").isNull()).collect()
    clues = [Clue(FindingKind(row["subject"]), **{name: row[name] for name in _CLUE_NUMBERS}) for row in told]
    # A partition sees only its own records of a transaction: only all partitions together show that it is torn.
    torn, torn_clues = _torn(found, rows, examples=examples) if counts.get("missing") else (0, [])
    clues = [clue for clue in clues if clue.kind is not FindingKind.TORN] + torn_clues
    return replace(Findings(**counts), torn=torn, clues=first_clues(clues, limit=examples))


def _torn(found: DataFrame, rows: DataFrame, *, examples: int) -> tuple[int, list[Clue]]:
    incomplete = (
        found.where("subject = 'incomplete'")
        .groupBy("transaction_id")
        .agg(F.sum("count").alias("missing"), F.min("id").alias("id"), F.sum("absent").alias("absent"))
    )
    sizes = rows.groupBy("transaction_id").agg(F.count("*").alias("stashed"))
    torn = incomplete.join(sizes, "transaction_id").where("stashed > absent").persist(StorageLevel.DISK_ONLY)
    first = torn.orderBy("transaction_id").limit(examples).collect()
    return torn.count(), [
        Clue(FindingKind.TORN, id=row["id"], transaction_id=row["transaction_id"], records=row["missing"])
        for row in first
    ]


def _run(config: HarvestConfig, request: AuditRequest) -> AuditReport:
    spark = SparkSession.builder.appName("airflow-outbox audit").getOrCreate()
    try:
        return audit_on_spark(spark, config, request)
    finally:
        spark.stop()


main = audit_command(_run)
"""The job for spark-submit, with the options of `airflow-outbox audit`."""

if __name__ == "__main__":
    leave_after(main)
