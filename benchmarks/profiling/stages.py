"""The timed stages: methods of the harvester, timed from outside, each with its stage.

Time in an inner stage does not count in the outer one. If a method is renamed, `time_all` fails instead of leaving a
stage empty.
"""

from __future__ import annotations

import asyncio.events
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from airflow_outbox.harvest.kafka.delivery_reports import DeliveryReports
from airflow_outbox.harvest.kafka.partitioner import Partitioner
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.kafka.transactional_producer import TransactionalProducer
from airflow_outbox.harvest.postgres_table import PostgresTable, of, over_purging, windows_of
from airflow_outbox.harvest.protocol.batches import Batch
from airflow_outbox.harvest.protocol.ledger_state import LedgerState
from airflow_outbox.harvest.protocol.parking import SingleRecords
from airflow_outbox.harvest.protocol.producer_state import Call
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.windows import WindowStatements
from airflow_outbox.values.fence import Purged
from benchmarks.profiling.timers import Timers

READ = "read"
WIRE = "read: statement and wire"
DECODE = "read: decode"
EXAMINE = "examine"
CHOOSE = "choose partitions"
PRODUCE = "produce"
FLUSH = "flush"
LEDGER = "commit: ledger"
COMMIT = "commit: Kafka"
FENCE = "take over: fence producers"
DISK = "wait for Postgres' disk"
PURGE = "purge"
ACCOUNT = "account and watch"
DIVIDE = "divide, and write the entry"
LOOP = "event loop"

STAGES: dict[str, str] = {
    WIRE: "Postgres runs the statement and sends the rows; the client puts them into memory",
    DECODE: "the rows become Python's values",
    READ: "the rest of reading: the page's size and snapshot",
    EXAMINE: "would Kafka take the records?",
    DIVIDE: "who is parked; the ledger's entry",
    CHOOSE: "each record's partition, and which of them Kafka is asked about",
    PRODUCE: "each record is given to Kafka's client",
    FLUSH: "until Kafka has all records of the batch",
    LEDGER: "the ledger's entry is given to Kafka's client and taken by Kafka",
    COMMIT: "the Kafka transaction is committed",
    PURGE: "the published rows are deleted",
    DISK: "the batch's rows are not on Postgres' disk yet",
    ACCOUNT: "heartbeats in the fence row, and looks at it",
    FENCE: "earlier producers are fenced, once a term",
    LOOP: "what the event loop does between",
}
"""The stages in the order in which a record meets them, each with what happens in it."""


def time_all(timers: Timers, *, purged: Callable[[int], None], taken_over: Callable[[], None]) -> None:
    """Put timers around the harvester's methods. `taken_over` is called when a view begins, `purged` after each purge
    with how many records it was given.
    """
    timers.around(WindowStatements, "_read", READ)
    timers.around(psycopg.Cursor, "execute", WIRE, inside=READ)
    timers.around(psycopg.Cursor, "fetchone", DECODE, inside=READ)
    timers.around(psycopg.Cursor, "fetchall", DECODE, inside=READ)
    timers.around(TopicCache, "passes", EXAMINE)
    timers.around(TopicCache, "examine", EXAMINE)
    timers.around(SingleRecords, "divert", DIVIDE)
    timers.around(Batch, "divert", DIVIDE)
    timers.around(Batch, "entry", DIVIDE)
    timers.around(LedgerState, "records", DIVIDE)
    timers.around(TransactionalProducer, "_publish", PRODUCE)
    timers.around(TopicCache, "partitions", CHOOSE)
    timers.around(Partitioner, "choose", CHOOSE)
    timers.around(DeliveryReports, "edges", CHOOSE)
    timers.around(TransactionalProducer, "_flush", FLUSH, inside=PRODUCE)
    timers.around(TransactionalProducer, "_commit", LEDGER)
    for name in ("heartbeat", "require_fence"):
        timers.around(OutboxTable, name, ACCOUNT)
    timers.around(WindowStatements, "flush", DISK)
    timers.around(asyncio.events.Handle, "_run", LOOP)
    _time_repeated(timers)
    _tell_of_purges(timers, purged)
    _tell_of_views(taken_over)


def _time_repeated(timers: Timers) -> None:
    original = TransactionalProducer._repeat
    stages = {Call.FENCE: FENCE, Call.COMMIT: COMMIT}

    def repeat(
        producer: TransactionalProducer, call: Call, function: Callable[[float], None], **started: float
    ) -> None:
        timers.timed(stages[call], original, producer, call, function, **started)

    TransactionalProducer._repeat = repeat  # type: ignore[method-assign, assignment]


def _tell_of_purges(timers: Timers, purged: Callable[[int], None]) -> None:
    original = WindowStatements.purge_published

    def purge_published(windows: WindowStatements, view: Any, ids: Sequence[int], *args: Any, **kwargs: Any) -> Purged:
        found: Purged = timers.timed(PURGE, original, windows, view, ids, *args, **kwargs)
        purged(len(ids))
        return found

    PostgresTable.purge_published = over_purging(of(windows_of, purge_published))


def _tell_of_views(taken_over: Callable[[], None]) -> None:
    original = OutboxTable.take_over

    def take_over(table: OutboxTable, *args: Any, **kwargs: Any) -> Any:
        fence = original(table, *args, **kwargs)
        taken_over()
        return fence

    OutboxTable.take_over = take_over  # type: ignore[method-assign, assignment]
