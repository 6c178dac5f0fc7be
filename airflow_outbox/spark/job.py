"""OutboxJob: what a PySpark job writes with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from airflow_outbox.errors import ConfigurationError, JobError
from airflow_outbox.names import OutboxName
from airflow_outbox.spark import settings
from airflow_outbox.spark.columns import record_frame
from airflow_outbox.spark.commit import Commit, CommitId, JobCommit, find_commit
from airflow_outbox.spark.data_source import taken
from airflow_outbox.spark.staging import prepare
from airflow_outbox.table import OutboxTable, connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxJob:
    """A job that writes business rows and events in one transaction, once.

    `data_source` is a libpq connection string or URI (of a direct connection: the driver's session holds an
    advisory lock); `outbox` is `table` or `schema.table`; `app_id` and `version` name the commit: a job that is tried
    again keeps both.
    """

    data_source: str = field(repr=False)
    app_id: str
    version: int = 0
    outbox: str = "outbox"
    _commits: list[JobCommit] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def from_session(cls, session: SparkSession) -> Self:
        """What `OutboxSparkSubmitOperator` has passed to this job; to be asked for once.

        Raises ConfigurationError when something is missing or was taken before.
        """

        def setting(name: str) -> str:
            value = session.conf.get(name, None)
            if not value:
                raise ConfigurationError(
                    f"{name} is not set. Submit the job by OutboxSparkSubmitOperator, or give OutboxJob its values"
                )
            return value

        return cls(
            data_source=taken(setting(settings.DATA_SOURCE_FILE)),
            app_id=setting(settings.APP_ID),
            version=int(setting(settings.VERSION)),
            outbox=setting(settings.OUTBOX_TABLE),
        )

    def write(self, frame: DataFrame, *, order_by: str | Sequence[str], statements: Sequence[str] = ()) -> JobCommit:
        """Write a DataFrame's rows: as events into the outbox, and by the job's statements into its business tables.

        The columns are those of Spark's Kafka sink: `topic`, `key`, `value`, and, where wanted, `headers` and
        `partition`; any others are the job's own. `statements` (one SQL statement a string, no COMMIT) run in the same
        transaction and read the view `staged`, which has all columns, `headers` as `header_keys` and `header_values`.
        The events get their ids in the order of `order_by`, one column or several.

        When the same `app_id` and `version` has committed before, nothing is run and the earlier commit is returned. So
        a job writes once, all in one; a second `write` is an error.

        Raises ConfigurationError for columns that don't fit; JobError when nothing was committed for a reason that the
        job has to mend; StagingLostError when it only has to run again; OutboxMissingError, PostgresError; and Spark's
        own errors when a task fails for good.
        """
        if self._commits:
            raise JobError(
                "the job has written already, and its id commits once. Write all in one, or give a second OutboxJob "
                "another app_id"
            )
        order = [order_by] if isinstance(order_by, str) else list(order_by)
        commit = self._write(frame, order_by=order, statements=list(statements))
        self._commits.append(commit)
        return commit

    def _write(self, frame: DataFrame, *, order_by: list[str], statements: list[str]) -> JobCommit:
        name = OutboxName.parse(self.outbox)
        commit_id = CommitId(self.app_id, self.version)
        with closing(connect(self.data_source, purpose="spark driver")) as connection:
            columns = dict(OutboxTable(connection, name).columns)
            if (earlier := find_commit(connection, name, commit_id)) is not None:
                return earlier
            records = record_frame(frame, outbox=columns, order_by=order_by)
            staging = prepare(records, connection, name)
            staging.sweep()
            staging.create()
            commit = Commit(
                connection=connection,
                outbox=name,
                outbox_columns=columns,
                commit_id=commit_id,
                order_by=order_by,
                job_statements=statements,
            )
            try:
                return commit.run(staging, staging.fill(records, self.data_source))
            finally:
                staging.drop()
