"""OutboxSparkSubmitOperator: submits a Spark job that writes business rows and events."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException, BaseHook
from airflow.providers.postgres.hooks.postgres import PostgresHook

try:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ImportError as error:
    raise AirflowOptionalProviderFeatureException(
        "OutboxSparkSubmitOperator needs Spark and its provider. Run: pip install 'airflow-outbox[spark]'"
    ) from error

from airflow_outbox.errors import ConfigurationError, JobError
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.names import OutboxName
from airflow_outbox.operators.stash import commit_id
from airflow_outbox.spark import settings
from airflow_outbox.spark.commit import find_commit
from airflow_outbox.spark.data_source import offered
from airflow_outbox.spark.options import CommitId

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import Context


class OutboxSparkSubmitOperator(SparkSubmitOperator):
    """Submit a job that writes with `OutboxJob.from_session(spark)`; the result (XCom) is its ticket as text.

    The job is told the outbox, its data source (the Postgres connection) and an id to commit under, which is this
    task's own: a job that is tried again, or a task that is cleared, commits nothing more and returns the earlier
    ticket. For a deliberate repeat give another `version`, a whole number.

    The job learns all of it from Spark properties. The data source, which holds the password, is in a pipe that only
    the task's user can read, once, and that ends with the task; so the driver must run where the task does. For deploy
    mode `cluster` name a file of your own, one that the driver finds, as the property
    `spark.airflowOutbox.dataSourceFile`. Executors are given the data source with the code of their tasks: where they
    are on other machines, let Spark encrypt what it sends (`spark.network.crypto.enabled`). They need psycopg, pyarrow
    and this package; Airflow they don't need.

    All else is as in SparkSubmitOperator, but for three things: a connection that is missing is an error, not YARN; a
    `spark-submit` that is not on PATH is looked for in the pyspark that is installed here; and a local master runs the
    job under the Python that runs Airflow, unless `conf` names another.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "postgres_conn_id",
        "outbox",
        "version",
    )

    def __init__(
        self,
        *,
        postgres_conn_id: str = PostgresHook.default_conn_name,
        outbox: str = "outbox",
        version: int | str = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.postgres_conn_id = postgres_conn_id
        self.outbox = outbox
        self.version = version
        self._driver_runs_here = True

    def execute(self, context: Context) -> str:  # type: ignore[override]  # the base class returns nothing
        """Submit the job, wait for its end and return its ticket.

        Raises JobError when the job ended well and has committed nothing under its id.
        """
        BaseHook.get_connection(self._conn_id)
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        commit = CommitId(commit_id(context["ti"]), int(self.version))
        given = dict(self.conf or {})
        own_file = given.get(settings.DATA_SOURCE_FILE)
        with nullcontext(own_file) if own_file else offered(hook.data_source()) as data_source_file:
            self._driver_runs_here = own_file is None
            self.conf = {
                **given,
                settings.OUTBOX_TABLE: self.outbox,
                settings.APP_ID: commit.app_id,
                settings.VERSION: str(commit.version),
                settings.DATA_SOURCE_FILE: data_source_file,
            }
            super().execute(context)
        with hook.transaction() as connection:
            found = find_commit(connection, OutboxName.parse(self.outbox), commit)
        if found is None:
            raise JobError(
                f"the job ended well but committed nothing under {commit.app_id}, version {commit.version}. "
                "Let it write with OutboxJob.from_session(spark)"
            )
        self.log.info("%d records stashed into %s. Ticket %s", found.records, self.outbox, found.ticket)
        return str(found.ticket)

    def _get_hook(self) -> SparkSubmitHook:
        hook: SparkSubmitHook = super()._get_hook()
        submission, properties = hook._connection, hook._conf
        if submission["deploy_mode"] == "cluster" and self._driver_runs_here:
            raise ConfigurationError(
                "deploy mode cluster: the driver runs elsewhere and can't read this machine's files. Give it the data "
                "source in a file of its own, a mounted secret for instance, and its path in conf, as "
                f"{settings.DATA_SOURCE_FILE}"
            )
        submission["spark_binary"] = _spark_submit(submission["spark_binary"])
        if submission["master"].startswith("local"):
            properties.setdefault("spark.pyspark.python", sys.executable)
        return hook


def _spark_submit(command: str) -> str:
    """The command, or the one in this environment's pyspark when it is not on PATH."""
    package = find_spec("pyspark")
    if shutil.which(command) is None and package is not None and package.origin is not None:
        installed = Path(package.origin).parent / "bin" / Path(command).name
        if installed.is_file():
            return str(installed)
    return command
