"""OutboxSparkSubmitOperator: submits a Spark job that writes business rows and events."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException, BaseHook
from airflow.providers.postgres.hooks.postgres import PostgresHook

try:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ImportError as error:
    raise AirflowOptionalProviderFeatureException(
        "OutboxSparkSubmitOperator needs Spark and its provider. Run: pip install 'airflow-outbox[spark]'"
    ) from error

from airflow_outbox.errors import ConfigurationError, JobError
from airflow_outbox.hooks import lineage
from airflow_outbox.hooks.commit_id import commit_id
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.links.outbox import OutboxLink
from airflow_outbox.postgres.commits import CommitId, find_commit
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.spark import settings
from airflow_outbox.spark.credentials import offered
from airflow_outbox.spark.py_files import packed
from airflow_outbox.stash import stash
from airflow_outbox.values.child_environment import without_airflow
from airflow_outbox.values.records import Ticket
from airflow_outbox.values.trace_context import TRACEPARENT, TRACESTATE, trace_headers

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context
    from airflow.providers.openlineage.extractors import OperatorLineage


class OutboxSparkSubmitOperator(SparkSubmitOperator):
    """Submit a job that writes by `format("outbox")` after `register(spark)`; the result (XCom) is a ticket as text.

    The operator tells the job the outbox, its data source (the Postgres connection) and an id to commit under. The id
    is this task's own: a job that is tried again, or a task that is cleared, commits nothing more and returns the
    earlier ticket. For a deliberate repeat give another `version`, a whole number. A job that writes streams has
    `is_stream=True`: its batches commit under the ids of their checkpoints, and its ticket is from a moment after all
    of them.

    The job reads all of it from Spark properties. The data source, which holds the password, is in a pipe. Only the
    task's user can read it, once, and it ends with the task; so the driver must run where the task does. For deploy
    mode `cluster`, name a file of your own that the driver finds, as the property `spark.airflowOutbox.dataSourceFile`.
    Executors get the data source with the code of their tasks: where they are on other machines, let Spark encrypt what
    it sends (`spark.network.crypto.enabled`). The driver does not inherit Airflow's own environment (`AIRFLOW…`), which
    may hold connections and keys; `env_vars` names what it is to get.

    With `tracing`, the records carry the trace context of the task as the headers `traceparent` and `tracestate`,
    unless they or a write have their own; Airflow has to trace its tasks.

    Unless the master is local, this package is sent along (`--py-files`), so that driver and executors have the same
    one; `ship_package=False` leaves it to you. They also need psycopg, pyarrow and numpy, but not Airflow.

    All else is as in SparkSubmitOperator, with four exceptions:

    - a missing connection is an error, not YARN;
    - a `spark-submit` that is not on PATH is looked for in the pyspark that is installed here;
    - a local master runs the job under the Python that runs Airflow, unless `conf` names another;
    - a task that is killed ends all processes of its driver, not only the first.

    The task fails with ConfigurationError where the driver can't get the data source, with JobError where the job ends
    well but has committed nothing, and with AirflowException where the job fails.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "postgres_conn_id",
        "outbox",
        "version",
    )
    operator_extra_links: Collection[BaseOperatorLink] = (*SparkSubmitOperator.operator_extra_links, OutboxLink())

    def __init__(
        self,
        *,
        postgres_conn_id: str = PostgresHook.default_conn_name,
        outbox: str = "outbox",
        version: int | str = 0,
        is_stream: bool = False,
        ship_package: bool = True,
        tracing: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.postgres_conn_id = postgres_conn_id
        self.outbox = outbox
        self.version = version
        self.is_stream = is_stream
        self.ship_package = ship_package
        self.tracing = tracing
        self._driver_runs_here = True
        self._package_folder: Path | None = None

    def execute(self, context: Context) -> str:  # type: ignore[override]  # the base class returns nothing
        """Submit the job, wait for its end and return its ticket.

        Raises JobError when the job ended well but has committed nothing under its id.
        """
        BaseHook.get_connection(self._conn_id)
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        own = commit_id(context["ti"], int(self.version))
        given = dict(self.conf or {})
        own_file = given.get(settings.DATA_SOURCE_FILE)
        with (
            nullcontext(own_file) if own_file else offered(hook.data_source()) as data_source_file,
            tempfile.TemporaryDirectory(prefix="airflow-outbox-package-") as folder,
        ):
            self._driver_runs_here = own_file is None
            self._package_folder = Path(folder)
            self.conf = {
                **given,
                settings.OUTBOX_TABLE: self.outbox,
                settings.APP_ID: own.app_id,
                settings.VERSION: str(own.version),
                settings.DATA_SOURCE_FILE: data_source_file,
                **(_trace_properties() if self.tracing else {}),
            }
            super().execute(context)
        ticket = self._ticket(hook, own)
        self.log.info("the job has committed into %s. Ticket %s", self.outbox, ticket)
        return str(ticket)

    def _ticket(self, hook: OutboxHook, own: CommitId) -> Ticket:
        with hook.transaction() as connection:
            if self.is_stream:
                return stash(connection, [], outbox=self.outbox)
            commit = find_commit(connection, OutboxName.parse(self.outbox), own)
        if commit is None:
            raise JobError(
                f"the job succeeded but committed nothing under {own}. Let it call "
                'register(spark) and write with format("outbox"). If it writes streams, set is_stream=True'
            )
        return commit.ticket

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """The outbox's table. The job's own tables and files are known to the job alone; `inlets` and `outlets` can
        name them. Raises PostgresError, OutboxMissingError.
        """
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        return lineage.lineage_of(self, outputs=[lineage.TableLocation.find(hook).dataset])

    def on_kill(self) -> None:
        """End the job: all processes of the driver and, on a cluster, whatever the base class ends."""
        submit = getattr(self._hook, "_submit_sp", None)
        processes = _descendants(submit.pid) if submit is not None else []
        super().on_kill()
        for process in processes:
            if process.is_running():
                process.kill()

    def _get_hook(self) -> SparkSubmitHook:
        hook: SparkSubmitHook = super()._get_hook()
        submission, properties = hook._connection, hook._conf
        if submission["deploy_mode"] == "cluster" and self._driver_runs_here:
            raise ConfigurationError(
                "deploy mode cluster: the driver runs elsewhere and can't read this machine's files. Put the data "
                "source into a file that the driver can read, such as a mounted secret, and its path into conf, as "
                f"{settings.DATA_SOURCE_FILE}"
            )
        submission["spark_binary"] = _spark_submit(submission["spark_binary"])
        is_local = submission["master"].startswith("local")
        if self.ship_package and not is_local and self._package_folder is not None:
            hook._py_files = ",".join(filter(None, [hook._py_files, str(packed(self._package_folder))]))
        if is_local:
            properties.setdefault("spark.pyspark.python", sys.executable)
        _keep_airflows_environment(hook)
        return hook


def _trace_properties() -> dict[str, str]:
    names = {TRACEPARENT: settings.TRACEPARENT, TRACESTATE: settings.TRACESTATE}
    return {names[header]: value for header, value in trace_headers().items()}


def _keep_airflows_environment(hook: SparkSubmitHook) -> None:
    """Keep Airflow's environment from the driver and its Python workers, except what `env_vars` names."""
    environment: dict[str, str] = without_airflow()
    build = hook._build_spark_submit_command

    def built(application: str) -> list[str]:
        command = build(application)
        environment.update(hook._env or {})
        hook._env = None  # or the hook would add them to the whole environment
        return command

    hook._build_spark_submit_command = built  # type: ignore[method-assign]
    hook.submit = partial(hook.submit, env=environment)  # type: ignore[method-assign]


def _spark_submit(command: str) -> str:
    """The command, or the one in this environment's pyspark when it is not on PATH."""
    package = find_spec("pyspark")
    if shutil.which(command) is None and package is not None and package.origin is not None:
        installed = Path(package.origin).parent / "bin" / Path(command).name
        if installed.is_file():
            return str(installed)
    return command


def _descendants(process: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(process).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
