"""The commit of a Spark write: one Postgres transaction, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from airflow_outbox.errors import JobError
from airflow_outbox.postgres.commits import EnteredCommit, enter_commit, find_commit
from airflow_outbox.postgres.errors import translated
from airflow_outbox.spark.insert import SparkStatements, stash_rows, stash_text
from airflow_outbox.spark.options import WriteOptions
from airflow_outbox.spark.staged_columns import StagedColumns
from airflow_outbox.spark.staging import StagedRows, StagingRun
from airflow_outbox.values.records import Ticket

_NEW_CHECKPOINT = "give the query a new checkpointLocation, and let its source start after what is committed"


@dataclass(frozen=True, slots=True)
class JobCommit:
    """A job's commit: its ticket, how many records, and whether an earlier try of the same job made it."""

    ticket: Ticket
    records: int
    earlier: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The commit of the rows that the accepted task attempts have staged."""

    connection: psycopg.Connection[Any]
    run: StagingRun
    layout: StagedColumns
    options: WriteOptions

    def commit(self, staged: Sequence[StagedRows]) -> JobCommit:
        """Commit all or nothing, and once; `staged` is in the order of the partitions.

        Raises JobError, StagingLostError, PostgresError.
        """
        outbox, commit_id = self.run.outbox, self.run.commit_id
        at = SparkStatements(connection=self.connection, run=self.run)
        with translated(outbox), self.connection.transaction():
            [(search_path, *_)] = at.execute("begin_commit").fetchall()
            at.execute("claim_commit", asdict(commit_id))
            if self.run.is_stream:
                self._require_newest(at)
            if (earlier := find_commit(self.connection, outbox, commit_id)) is not None:
                if self.run.is_stream:
                    self._require_same(earlier, staged)
                return JobCommit(earlier.ticket, earlier.records, earlier=True)
            if self.layout.is_text:
                count = stash_text(at, self.layout, staged)
            else:
                count = stash_rows(at, self.layout, staged, self.options, search_path=search_path)
            is_first = enter_commit(self.connection, outbox, commit_id, records=count)
            committed = find_commit(self.connection, outbox, commit_id)
            if not is_first or committed is None:
                raise JobError(f"{commit_id} is used by another writer; nothing was committed. Use another id")
            if self.options.commit_sql:  # deferred triggers of the job's own tables run at the commit
                at.execute("look_there", {"search_path": search_path})
        return JobCommit(committed.ticket, committed.records, earlier=False)

    def _require_newest(self, at: SparkStatements) -> None:
        app_id, version = self.run.commit_id.app_id, self.run.commit_id.version
        [(later,)] = at.execute("later_epoch", asdict(self.run.commit_id)).fetchall()
        if later is not None:
            raise JobError(
                f"{app_id}: batch {version} comes after batch {later} was committed; nothing was committed now. The "
                "checkpoint is older than the commits, like a restored copy, or two queries use it. Bring back the "
                f"newest one, or {_NEW_CHECKPOINT}"
            )

    def _require_same(self, earlier: EnteredCommit, staged: Sequence[StagedRows]) -> None:
        app_id, version = self.run.commit_id.app_id, self.run.commit_id.version
        count = sum(rows.count for rows in staged)
        if count != earlier.records:
            raise JobError(
                f"{app_id}: batch {version} was committed with {earlier.records} records, but has {count} now; "
                "nothing was committed now. The job or its source has changed, or the checkpoint is a restored copy. "
                f"Run this batch once as it was, or {_NEW_CHECKPOINT}"
            )
