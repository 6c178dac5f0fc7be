"""The stream writer: each of a query's batches, once.

Spark makes a writer for the tasks and another one for each commit, and tells neither to which query it belongs. The
tasks know. So the messages carry the commit's id: the query's own (that of its checkpoint) and the batch's number.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.commits import CommitId
from airflow_outbox.postgres.connection import connect
from airflow_outbox.spark.options import STREAM_INLINE_BYTES, WriteOptions
from airflow_outbox.spark.retrying import patiently
from airflow_outbox.spark.staged_columns import StagedColumns, as_found
from airflow_outbox.spark.staging import StagingRun
from airflow_outbox.spark.writer import AttemptMessage, Plan, abandon, commit_attempts, planned, write_attempt

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


def stream_app_id(query_id: str) -> str:
    """The id under which a streaming query commits; the version is the number of the batch."""
    return f"spark-stream/{query_id}"


@dataclass(frozen=True)
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one query."""

    run: StagingRun
    layout: StagedColumns
    options: WriteOptions = field(repr=False)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        context = cast("Any", TaskContext.get())
        query_id, batch_id = context.getLocalProperty(_QUERY_ID), int(context.getLocalProperty(_BATCH_ID))
        run = replace(self.run, commit_id=CommitId(stream_app_id(query_id), batch_id))
        limit = STREAM_INLINE_BYTES if self.options.inline_bytes is None else self.options.inline_bytes
        return write_attempt(iterator, run=run, layout=self.layout, options=self.options, inline_bytes=limit)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        run = self._run_of(messages)
        if run is not None:  # without a partition there is nothing to commit
            commit_attempts(messages, run=run, layout=self.layout, options=self.options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        run = self._run_of(messages)
        if run is not None:
            abandon(messages, run=run, options=self.options)

    def _run_of(self, messages: Sequence[WriterCommitMessage | None]) -> StagingRun | None:
        ids = {cast("AttemptMessage", message).commit_id for message in messages if message is not None}
        return replace(self.run, commit_id=cast("CommitId", ids.pop())) if ids else None


def stream_writer(schema: StructType, options: WriteOptions) -> StreamWriter:
    """The writer of a query with this schema; it also works where Postgres restarts while the query runs.

    Raises ConfigurationError, OutboxMissingError, PostgresError.
    """
    if options.commit_id is not None:
        raise ConfigurationError(
            "option txnAppId: a streaming query commits under its own id, that of its checkpoint. Leave the option out"
        )
    schema, options = as_found(schema, options)

    def look() -> Plan:
        with closing(connect(options.data_source, purpose="spark driver", is_pooled=True)) as connection:
            return planned(connection, schema, options)

    plan = patiently(look)
    run = StagingRun(plan.outbox, plan.schema, secrets.token_hex(4), CommitId("spark-stream", 0), is_stream=True)
    return StreamWriter(run, plan.layout, options)
