"""OutboxJob: what a PySpark job writes with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from airflow_outbox.errors import ConfigurationError, JobError
from airflow_outbox.names import OutboxName
from airflow_outbox.spark import settings
from airflow_outbox.spark.commit import JobCommit, find_commit
from airflow_outbox.spark.options import CommitId
from airflow_outbox.spark.registration import _data_source, register
from airflow_outbox.table import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxJob:
    """A job that writes business rows and events in one transaction, once.

    `data_source` is a libpq connection string or URI; `outbox` is `table` or `schema.table`; `app_id` and `version`
    name the commit: a job that is tried again keeps both.
    """

    data_source: str = field(repr=False)
    app_id: str
    version: int = 0
    outbox: str = "outbox"
    _commits: list[JobCommit] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def from_session(cls, session: SparkSession) -> Self:
        """What `OutboxSparkSubmitOperator` has passed to this job.

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
            data_source=_data_source(setting(settings.DATA_SOURCE_FILE)),
            app_id=setting(settings.APP_ID),
            version=int(setting(settings.VERSION)),
            outbox=setting(settings.OUTBOX_TABLE),
        )

    def write(self, frame: DataFrame, *, order_by: str | Sequence[str], statements: Sequence[str] = ()) -> JobCommit:
        """Write a DataFrame by the data source `outbox`; `statements` become its `commitSql`.

        Raises JobError for a second write, OutboxMissingError, PostgresError, and Spark's own errors.
        """
        if self._commits:
            raise JobError(
                "the job has written already, and its id commits once. Write all in one, or give a second OutboxJob "
                "another app_id"
            )
        earlier = self._found()
        if earlier is None:
            register(frame.sparkSession)
            columns = [order_by] if isinstance(order_by, str) else order_by
            options = {
                "url": self.data_source,
                "dbtable": self.outbox,
                "txnAppId": self.app_id,
                "txnVersion": str(self.version),
                "orderBy": ", ".join('"' + column.replace('"', '""') + '"' for column in columns),
                **({"commitSql": ";\n".join(statements)} if statements else {}),
            }
            frame.write.format("outbox").options(**options).mode("append").save()
        commit = earlier or self._found()
        if commit is None:
            raise JobError(f"{self.app_id} has committed nothing. Look at the driver's log")
        self._commits.append(commit)
        return commit if earlier else JobCommit(commit.ticket, commit.records, earlier=False)

    def _found(self) -> JobCommit | None:
        with closing(connect(self.data_source, purpose="spark driver", is_pooled=True)) as connection:
            return find_commit(connection, OutboxName.parse(self.outbox), CommitId(self.app_id, self.version))
