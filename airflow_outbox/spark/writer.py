"""The work of planner, tasks and driver for a write, by a batch job or a stream.

A task attempt checks its rows and stages them; its message says how many, and where. Spark gives the driver one message
a partition, from the attempt that counts, and the driver commits them. Losing attempts have no message, and so no
effect.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_outbox.errors import JobError, OutboxError, OutboxMissingError
from airflow_outbox.postgres.commits import CommitId
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.spark.cloud_events import event_problem, with_events, with_headers
from airflow_outbox.spark.commit import Commit, JobCommit
from airflow_outbox.spark.copy_text import copy_lines
from airflow_outbox.spark.options import WriteOptions
from airflow_outbox.spark.retrying import patiently
from airflow_outbox.spark.staged_columns import StagedColumns, found_names, plan
from airflow_outbox.spark.staging import StagedRows, StagingRun, drop, stage, sweep
from airflow_outbox.spark.validation import Problem, first_problem

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions before the first task: where the outbox is, where rows are staged, and how."""

    outbox: OutboxName
    schema: str
    layout: StagedColumns


def planned(connection: psycopg.Connection[Any], schema: StructType, options: WriteOptions) -> Plan:
    """Look at the outbox. Raises ConfigurationError, which names the column; OutboxMissingError, PostgresError."""
    outbox = options.outbox
    columns = OutboxTable(connection, outbox).columns
    statements = Statements(connection, outbox)
    row = statements.row("spark.place_of", {"outbox": outbox.text()})
    outbox_schema, defaults = cast("tuple[str, list[str]]", row)
    staging = outbox.staging_schema(outbox_schema)
    [(is_there,)] = statements.rows("init.schema_exists", {"schema": staging})
    if not is_there:
        raise OutboxMissingError(
            f"there is no schema {staging}, in which jobs stage records for {outbox}. Let the outbox's owner run "
            "`airflow-outbox init`, and `airflow-outbox grant --job` for this role"
        )
    if options.are_cloud_events:
        schema, options = with_headers(schema, options)
    layout = plan(schema, options=options, outbox=columns, defaults=defaults)
    return Plan(outbox.located(outbox_schema), staging, layout)


@dataclass(frozen=True, slots=True)
class AttemptMessage(WriterCommitMessage):
    """A task attempt's message to the driver. `problem` says why its rows can't be committed by any attempt."""

    partition: int
    rows: StagedRows
    commit_id: CommitId | None = None
    problem: str | None = None


class UnfitRecordError(Exception):
    """A record that breaks a rule. The message says which record, and what is wrong with it."""


def write_attempt(
    batches: Iterable[pyarrow.RecordBatch],
    *,
    run: StagingRun,
    layout: StagedColumns,
    options: WriteOptions,
    inline_bytes: int,
) -> AttemptMessage:
    """Check and stage the rows of this task attempt. Raises PostgresError, which Spark answers with another attempt.

    A record that breaks a rule does so in every attempt. So the message tells of it, and the commit raises.
    """
    context = cast("TaskContext", TaskContext.get())
    partition = context.partitionId()
    try:
        rows = stage(
            _lines(batches, layout=layout, options=options, partition=partition),
            run=run,
            layout=layout,
            inline_bytes=inline_bytes,
            attempt=context.taskAttemptId(),
            data_source=options.data_source,
        )
    except UnfitRecordError as unfit:
        return AttemptMessage(partition, StagedRows(0, None, ()), run.commit_id, str(unfit))
    return AttemptMessage(partition, rows, run.commit_id)


def _lines(
    batches: Iterable[pyarrow.RecordBatch], *, layout: StagedColumns, options: WriteOptions, partition: int
) -> Iterator[tuple[int, bytes]]:
    before = 0
    for batch in batches:
        batch = batch.rename_columns(found_names(batch.schema.names, options))
        problem = event_problem(batch) if options.are_cloud_events else None
        if options.are_cloud_events:
            batch = with_events(batch, options)
        if problem := problem or first_problem(batch, layout):
            raise UnfitRecordError(_told(problem, batch, options=options, partition=partition, before=before))
        texts = copy_lines(batch, layout)
        for place, text in enumerate(texts):
            yield (batch.num_rows if place == 0 else 0), text
        before += batch.num_rows


def _told(problem: Problem, batch: pyarrow.RecordBatch, *, options: WriteOptions, partition: int, before: int) -> str:
    named = [f"{name} = {batch.column(name)[problem.row].as_py()}" for name in options.order_by]
    if "key" in batch.schema.names and problem.column != "key":
        named.append(f"key = {batch.column('key')[problem.row].as_py()!r}")
    names = f" ({', '.join(named)})" if named else ""
    return f"row {before + problem.row} of partition {partition}{names}: column {problem.column}: {problem.rule}"


def commit_attempts(
    messages: Sequence[WriterCommitMessage | None], *, run: StagingRun, layout: StagedColumns, options: WriteOptions
) -> JobCommit:
    """Commit the rows that the accepted attempts have staged, and drop the staging. Raises JobError, PostgresError.

    If Postgres goes away, it waits for it, and then finds by the id whether the commit took effect.
    """
    accepted = sorted(cast("Sequence[AttemptMessage]", messages), key=lambda message: message.partition)
    if problems := [message.problem for message in accepted if message.problem]:
        raise JobError(f"{problems[0]}; nothing was committed. Correct it in the job")
    staged = [message.rows for message in accepted]

    def attempt() -> JobCommit:
        with closing(connect(options.data_source, purpose="spark driver", is_pooled=True)) as connection:
            commit = Commit(connection=connection, run=run, layout=layout, options=options).commit(staged)
            try:
                drop(connection, run, [rows.table for rows in staged if rows.table is not None])
                sweep(connection, run, ttl_seconds=options.staging_ttl_seconds)
            except OutboxError as error:
                log.warning("committed, but some staged rows could not be dropped; a later run drops them: %s", error)
            return commit

    return patiently(attempt)


def abandon(messages: Sequence[WriterCommitMessage | None], *, run: StagingRun, options: WriteOptions) -> None:
    """Drop the staging of a write that Spark gave up. It has failed already; a later sweep drops what can't be now."""
    try:
        with closing(connect(options.data_source, purpose="spark driver", is_pooled=True)) as connection:
            told = [cast("Any", message).rows.table for message in messages if message is not None]
            drop(connection, run, [table for table in told if table is not None])
            sweep(connection, run, ttl_seconds=options.staging_ttl_seconds)
    except OutboxError as error:
        log.warning("some staged rows could not be dropped; a later run drops them: %s", error)
