"""The batch writer: one write, one commit."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_outbox.errors import JobError
from airflow_outbox.postgres.commits import CommitId, find_commit
from airflow_outbox.postgres.connection import connect
from airflow_outbox.spark.options import INLINE_BYTES, WriteOptions
from airflow_outbox.spark.staged_columns import StagedColumns, as_found
from airflow_outbox.spark.staging import StagedRows, StagingRun, sweep
from airflow_outbox.spark.writer import AttemptMessage, abandon, commit_attempts, planned, write_attempt

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchWriter(DataSourceArrowWriter):
    """Writes once. With `is_done` an earlier try of the same id has committed, and nothing is left to do.

    `wrote` is a file. This driver makes it when it has written, or found written, under its session's id: that id is
    then used up.
    """

    run: StagingRun
    layout: StagedColumns
    options: WriteOptions = field(repr=False)
    is_done: bool = False
    wrote: Path | None = None

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        if self.is_done:
            return AttemptMessage(0, StagedRows(0, None, ()))
        limit = INLINE_BYTES if self.options.inline_bytes is None else self.options.inline_bytes
        return write_attempt(iterator, run=self.run, layout=self.layout, options=self.options, inline_bytes=limit)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self.is_done or commit_attempts(messages, run=self.run, layout=self.layout, options=self.options).earlier:
            commit_id = self.run.commit_id
            log.warning(
                "%s, version %d, was committed before; nothing is written again", commit_id.app_id, commit_id.version
            )
        self._note()

    def _note(self) -> None:
        """Make the next write under the session's id an error, also one that has been planned meanwhile."""
        if self.wrote is None:
            return
        try:
            self.wrote.touch(exist_ok=False)
        except FileExistsError:
            raise _used_up(self.run.commit_id) from None

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if not self.is_done:
            abandon(messages, run=self.run, options=self.options)


def batch_writer(schema: StructType, options: WriteOptions, *, wrote: Path | None = None) -> BatchWriter:
    """The writer of a DataFrame with this schema.

    Raises ConfigurationError, OutboxMissingError, PostgresError; JobError for a second write under the session's id.
    """
    schema, options = as_found(schema, options)
    commit_id = options.commit_id or CommitId(f"spark/{uuid4()}", 0)
    with closing(connect(options.data_source, purpose="spark driver", is_pooled=True)) as connection:
        plan = planned(connection, schema, options)
        run = StagingRun(plan.outbox, plan.schema, secrets.token_hex(4), commit_id, is_stream=False)
        is_done = find_commit(connection, plan.outbox, commit_id) is not None
        if is_done and wrote is not None and wrote.exists():
            raise _used_up(commit_id)
        sweep(connection, run, ttl_seconds=options.staging_ttl_seconds)
    return BatchWriter(run, plan.layout, options, is_done, wrote)


def _used_up(commit_id: CommitId) -> JobError:
    return JobError(
        f"the job writes a second time, but its id, {commit_id.app_id}, commits only once: one write would be lost. "
        "Write all at once, or give the second write its own option txnAppId, with the run's id in it, such as "
        f"{commit_id.app_id}/2. An id that is the same in each run is skipped in the next run"
    )
