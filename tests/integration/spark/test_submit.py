"""OutboxSparkSubmitOperator, with the real spark-submit: what it hands over, what it hides, and the ticket."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from airflow_outbox.demo.java import find_java, java_home
from airflow_outbox.demo.postgres import EmbeddedPostgres
from airflow_outbox.errors import JobError
from airflow_outbox.names import OutboxName
from airflow_outbox.operators.spark import OutboxSparkSubmitOperator
from airflow_outbox.records import Ticket
from airflow_outbox.schema import grant_statements, init_outbox
from airflow_outbox.table import connect

# The provider's hook leaves the output of spark-submit open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PASSWORD = "correct-horse-battery-staple"
RUN = SimpleNamespace(dag_id="shop", task_id="orders", run_id="manual__1", map_index=-1)

# Writes one record, and beside it what can be seen of the job from outside: arguments and environment of the driver, of
# all its ancestors up to the test, and of the Python workers; and what Spark's UI shows.
JOB = """
import json, os, sys, urllib.request
from pathlib import Path
from pyspark.sql import SparkSession
from airflow_outbox.spark import OutboxJob

def seen_of(process, top):
    while process not in (0, 1, top):
        for name in ("cmdline", "environ"):
            yield f"{name} of {process}: " + Path(f"/proc/{process}/{name}").read_text(errors="replace")
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

spark = SparkSession.builder.getOrCreate()
top = int(sys.argv[1])
job = OutboxJob.from_session(spark)
frame = spark.createDataFrame([("orders", "k", "v", 1)], "topic string, key string, value string, id int")
if sys.argv[3] == "write":
    job.write(frame, order_by="id")
workers = spark.sparkContext.parallelize([0], 1).map(lambda _: list(seen_of(os.getpid(), top))).collect()
ui = spark.sparkContext.uiWebUrl + f"/api/v1/applications/{spark.sparkContext.applicationId}/environment"
with urllib.request.urlopen(ui) as answer:
    environment = answer.read().decode()
file = Path(spark.conf.get("spark.airflowOutbox.dataSourceFile"))
Path(sys.argv[2]).write_text(json.dumps({
    "seen": [*seen_of(os.getpid(), top), *workers[0]], "ui": environment, "python": sys.executable,
    "file": str(file), "mode": oct(file.stat().st_mode), "folder_mode": oct(file.parent.stat().st_mode),
}))
spark.stop()
"""


@pytest.fixture
def connection(
    database: str, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> Iterator[psycopg.Connection[Any]]:
    """An outbox, a role with a password that may write to it, and the Airflow connections that the operator uses."""
    with connect(database, purpose="test") as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        role = f"{connection.info.dbname}_job"
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'".encode())
        for statement in grant_statements(connection, OutboxName.parse("outbox"), "job", role):
            connection.execute(statement.encode())
        shop = {
            "conn_type": "postgres",
            "host": "127.0.0.1",
            "port": postgres.port,
            "schema": connection.info.dbname,
            "login": role,
            "password": PASSWORD,
        }
        local = {"conn_type": "spark", "host": "local[1]"}
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps(shop))
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(local))
        monkeypatch.setenv("JAVA_HOME", str(java_home(find_java())))
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        yield connection
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def submit(job_file: Path, *, write: bool = True, **arguments: Any) -> tuple[str, Mapping[str, Any]]:
    """Run the operator as a task would; its result, and what the job has reported."""
    report = job_file.with_suffix(".json")
    operator = OutboxSparkSubmitOperator(
        task_id="orders",
        postgres_conn_id="shop_db",
        application=str(job_file),
        application_args=[str(os.getpid()), str(report), "write" if write else "idle"],
        **arguments,
    )
    ticket = operator.execute({"ti": RUN})  # type: ignore[arg-type, typeddict-item]
    return ticket, json.loads(report.read_text())


def test_a_submitted_job_commits_once_and_shows_no_password(
    connection: psycopg.Connection[Any],
    job_file: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = [folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder, "spark-submit").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(bare))
    assert shutil.which("spark-submit") is None
    connections = {name: os.environ[name] for name in os.environ if name.startswith("AIRFLOW_CONN_")}
    ticket, report = submit(job_file)
    log = "".join(capfd.readouterr())

    row = connection.execute("SELECT app_id, version, transaction_id::text, records FROM outbox_commits").fetchone()
    assert row == ("airflow/shop/manual__1/orders/-1", 0, str(Ticket.parse(ticket).transaction_id), 1)
    assert report["python"] == sys.executable

    seen = "\n".join(report["seen"])
    for connection_text in connections.values():  # how this test gives Airflow its connections is not the job's doing
        seen = seen.replace(connection_text, "")
    assert seen.count("cmdline of") >= 4  # the driver, spark-submit, and a worker under its daemon
    assert "spark.airflowOutbox.dataSourceFile" in seen
    assert PASSWORD not in seen
    assert "spark.airflowOutbox.appId" in report["ui"]
    assert PASSWORD not in report["ui"]
    assert "Spark-Submit cmd" in log
    assert PASSWORD not in log

    assert report["mode"] == "0o10600"  # a pipe
    assert report["folder_mode"].endswith("700")
    assert not Path(report["file"]).parent.exists()

    again, _ = submit(job_file)
    assert again == ticket
    repeated, _ = submit(job_file, version="1")
    assert repeated != ticket
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (2,)


def test_a_job_that_fails_or_does_not_write_leaves_no_file(
    connection: psycopg.Connection[Any], job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(JobError, match="committed nothing under airflow/shop/manual__1/orders/-1, version 0"):
        submit(job_file, write=False)
    job_file.write_text("raise SystemExit('the job fails')")
    with pytest.raises(Exception, match="Error code is: 1"):
        submit(job_file)
    assert [path for path in folder.iterdir() if path.name.startswith("airflow-outbox-")] == []
