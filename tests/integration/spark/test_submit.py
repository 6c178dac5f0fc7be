"""OutboxSparkSubmitOperator, with the real spark-submit: what it hands over, what it hides, and the ticket."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg
import pytest
from faults.spark.standalone import Standalone
from support.harvesting import PATIENCE

from airflow_outbox import __version__
from airflow_outbox.demo.check import compare_tables
from airflow_outbox.demo.embedded.java import find_java, java_home
from airflow_outbox.demo.embedded.ports import LOOPBACK
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.demo.flights import read_flights
from airflow_outbox.errors import JobError
from airflow_outbox.operators.spark import OutboxSparkSubmitOperator
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements, init_outbox
from airflow_outbox.values.records import Ticket

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

DAGS = Path(__file__).resolve().parents[3] / "dags"
PASSWORD = "correct-horse-battery-staple"
RUN = SimpleNamespace(dag_id="shop", task_id="orders", run_id="manual__1", map_index=-1)

# Writes one record, and beside it what can be seen of the job from outside: arguments and environment of the driver, of
# all its ancestors up to the test, and of the Python workers; and what Spark's UI shows.
JOB = """
import json, os, sys, time, urllib.request
from pathlib import Path
from pyspark.sql import SparkSession
from airflow_outbox.spark import register

def seen_of(process, top):
    while process not in (0, 1, top):
        for name in ("cmdline", "environ"):
            yield f"{name} of {process}: " + Path(f"/proc/{process}/{name}").read_text(errors="replace")
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

def package_here(_):
    import airflow_outbox
    return airflow_outbox.__file__

spark = SparkSession.builder.getOrCreate()
top = int(sys.argv[1])
if sys.argv[3] == "write":
    register(spark)
    frame = spark.createDataFrame([("orders", "k", "v", 1)], "topic string, key string, value string, id int")
    frame.write.format("outbox").option("orderBy", "id").mode("append").save()
workers = spark.sparkContext.parallelize([0], 1).map(lambda _: list(seen_of(os.getpid(), top))).collect()
ui = spark.sparkContext.uiWebUrl + f"/api/v1/applications/{spark.sparkContext.applicationId}"
shown = {}
def shows_the_write():
    with urllib.request.urlopen(f"{ui}/sql?details=true") as answer:
        return "outbox" in answer.read().decode()

for _ in range(600):  # it hears of it later
    if sys.argv[3] != "write" or shows_the_write():
        break
    time.sleep(0.1)
for page in ("environment", "sql?details=true", "stages?details=true", "jobs", "allexecutors"):
    with urllib.request.urlopen(f"{ui}/{page}") as answer:
        shown[page] = answer.read().decode()
for page in ("SQL/", "environment/", "jobs/", "stages/"):
    with urllib.request.urlopen(f"{spark.sparkContext.uiWebUrl}/{page}") as answer:
        shown[page] = answer.read().decode()
[names] = spark.sparkContext.parallelize([0], 1).map(lambda _: sorted(os.environ)).collect()
packages = spark.sparkContext.parallelize([0], 1).map(package_here).collect()
file = Path(spark.conf.get("spark.airflowOutbox.dataSourceFile"))
Path(sys.argv[2]).write_text(json.dumps({
    "seen": [*seen_of(os.getpid(), top), *workers[0]], "worker": names, "ui": shown, "python": sys.executable,
    "packages": packages,
    "file": str(file), "mode": oct(file.stat().st_mode), "folder_mode": oct(file.parent.stat().st_mode),
}))
spark.stop()
"""
# Its driver is busy with something of its own while a task of it writes.
SLOW_JOB = """
import sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from airflow_outbox.spark import register

def write():
    register(spark)
    slow = F.udf(lambda n: time.sleep(600) or str(n), "string")
    frame = spark.range(1).select(F.lit("orders").alias("topic"), F.lit("k").alias("key"), slow("id").alias("value"))
    frame.write.format("outbox").mode("append").save()

spark = SparkSession.builder.getOrCreate()
threading.Thread(target=write, daemon=True).start()
Path(sys.argv[1]).touch()
time.sleep(600)
"""
STREAM_JOB = """
import sys
from pyspark.sql import SparkSession
from airflow_outbox.spark import register

spark = SparkSession.builder.getOrCreate()
register(spark)
lines = spark.readStream.text(f"{sys.argv[1]}/in").selectExpr("'orders' AS topic", "'k' AS key", "value")
write = lines.writeStream.format("outbox").option("checkpointLocation", f"{sys.argv[1]}/checkpoint")
write.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


@pytest.fixture(autouse=True)
def hook_is_collected() -> Iterator[None]:
    """The provider's hook leaves the output of spark-submit open: let it be said of the test that used it."""
    yield
    gc.collect()


@pytest.fixture
def connection(
    database: str, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> Iterator[psycopg.Connection[Any]]:
    """An outbox, a role with a password that may write to it, and the Airflow connections that the operator uses."""
    with psycopg.connect(database, autocommit=True) as connection:
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
    tmp_path: Path,
) -> None:
    bare = [folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder, "spark-submit").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(bare))
    assert shutil.which("spark-submit") is None
    history = tmp_path / "history"
    history.mkdir()
    ticket, report = submit(job_file, conf={"spark.eventLog.enabled": "true", "spark.eventLog.dir": history.as_uri()})
    log = "".join(capfd.readouterr())

    row = connection.execute("SELECT app_id, version, transaction_id::text, records FROM outbox_commits").fetchone()
    assert row == ("airflow/shop/manual__1/orders/-1", 0, str(Ticket.parse(ticket).transaction_id), 1)
    assert report["python"] == sys.executable

    seen = "\n".join(report["seen"])
    assert seen.count("cmdline of") >= 4  # the driver, spark-submit, and a worker under its daemon
    assert "pyspark.daemon" in seen
    environments = [variables(text) for text in report["seen"] if text.startswith("environ of")]
    assert len(environments) == seen.count("cmdline of")
    environments.append(set(report["worker"]))  # as it has set it itself
    assert all("JAVA_HOME" in names for names in environments)
    assert "AIRFLOW_CONN_SHOP_DB" in os.environ
    assert {name for names in environments for name in names if "AIRFLOW" in name} == set()
    assert "spark.airflowOutbox.dataSourceFile" in seen
    assert PASSWORD not in seen
    assert "spark.airflowOutbox.appId" in report["ui"]["environment"]
    assert "outbox" in report["ui"]["sql?details=true"]
    for page, text in report["ui"].items():
        assert PASSWORD not in text, page
    events = b"".join(file.read_bytes() for file in history.rglob("*") if file.is_file())
    assert b"SparkListenerApplicationEnd" in events
    assert PASSWORD.encode() not in events
    assert "Spark-Submit cmd" in log
    assert PASSWORD not in log

    assert report["mode"] == "0o10600"  # a pipe
    assert report["folder_mode"].endswith("700")
    assert not Path(report["file"]).parent.exists()

    again, _ = submit(job_file)
    assert again == ticket
    assert "airflow/shop/manual__1/orders/-1, version 0, was committed before" in "".join(capfd.readouterr())
    repeated, _ = submit(job_file, version="1")
    assert repeated != ticket
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (2,)


def variables(seen: str) -> set[str]:
    """The names of the variables in what was seen of a process' environment."""
    _, _, environment = seen.partition(": ")
    return {variable.partition("=")[0] for variable in environment.split("\0") if variable}


@pytest.mark.long
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


@pytest.mark.long
def test_a_job_that_writes_a_stream_gets_a_ticket_of_a_later_moment(
    connection: psycopg.Connection[Any], job_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a\nb\n")
    job_file.write_text(STREAM_JOB)
    tickets = []
    for _ in range(2):
        stream = OutboxSparkSubmitOperator(
            task_id="orders",
            postgres_conn_id="shop_db",
            application=str(job_file),
            application_args=[str(tmp_path)],
            is_stream=True,
        )
        tickets.append(Ticket.parse(stream.execute({"ti": RUN})))  # type: ignore[arg-type, typeddict-item]
        close_output(stream)
    rows = connection.execute("SELECT kafka_value, transaction_id::text::bigint FROM outbox ORDER BY id").fetchall()
    assert [value for value, _ in rows] == ["a", "b"]
    assert rows[-1][1] < tickets[0].transaction_id < tickets[1].transaction_id


@pytest.mark.long
def test_on_a_cluster_the_package_comes_along_and_no_password_shows(
    connection: psycopg.Connection[Any],
    job_file: Path,
    server_folder: Path,
    topic_prefix: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", LOOPBACK)
    with Standalone(server_folder / f"{topic_prefix}spark") as cluster:
        host, _, port = cluster.master.rpartition(":")
        standalone = {"conn_type": "spark", "host": host, "port": int(port)}
        monkeypatch.setenv("AIRFLOW_CONN_STANDALONE", json.dumps(standalone))
        python = {"spark.pyspark.python": sys.executable, "spark.executor.memory": "512m", "spark.cores.max": "1"}
        ticket, report = submit(job_file, conn_id="standalone", conf=python)
        logs = "".join(file.read_text(errors="replace") for file in cluster.folder.rglob("*") if file.suffix == ".log")
        logs += "".join(file.read_text() for file in cluster.folder.rglob("std*"))
    assert Ticket.parse(ticket)
    assert [Path(package).parts[-3] for package in report["packages"]] == [f"airflow_outbox-{__version__}.zip"]
    executors = [seen for seen in report["seen"] if "CoarseGrainedExecutorBackend" in seen]
    assert executors
    assert "Executor" in logs
    for text in ("\n".join(executors), logs, "".join(capfd.readouterr()), *report["ui"].values()):
        assert PASSWORD not in text


@pytest.mark.long
def test_the_demos_stream_writes_each_flight_once(
    connection: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(f"GRANT CREATE ON SCHEMA public TO {connection.info.dbname}_job".encode())
    flights = list(read_flights(month=1, rows=None))
    for written in (len(flights), 0):
        task = OutboxSparkSubmitOperator(
            task_id="write_flights",
            postgres_conn_id="shop_db",
            application=str(DAGS / "flights_stream_job.py"),
            py_files=str(DAGS / "flights_job.py"),
            application_args=["--month=1", "--rows=", f"--folder={tmp_path}"],
            is_stream=True,
        )
        task.execute({"ti": RUN})  # type: ignore[arg-type, typeddict-item]
        close_output(task)
        stashed = connection.execute("SELECT kafka_header_values[2]::int FROM outbox ORDER BY id").fetchall()
        assert [row for (row,) in stashed] == [flight.source_row for flight in flights[:written]]
        assert compare_tables(flights, connection) == []
        connection.execute("DELETE FROM outbox")
    assert connection.execute("SELECT count(*) FROM outbox_commits").fetchone() == (4,)


def test_a_killed_task_ends_all_processes_of_the_job(
    connection: psycopg.Connection[Any], job_file: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    job_file.write_text(SLOW_JOB)
    operator = OutboxSparkSubmitOperator(
        task_id="orders", postgres_conn_id="shop_db", application=str(job_file), application_args=[str(started)]
    )
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(operator.execute, {"ti": RUN})  # type: ignore[arg-type, typeddict-item]
        try:
            processes: list[psutil.Process] = []
            deadline = time.monotonic() + 5 * PATIENCE
            while not any("write_into_data_source" in command(process) for process in processes):
                assert time.monotonic() < deadline
                assert not running.done(), running.result()
                time.sleep(0.2)
                processes = submitted(operator) if started.exists() else []
        finally:
            operator.on_kill()
        with pytest.raises(Exception, match="Error code"):
            running.result(2 * PATIENCE)
    close_output(operator)
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    assert alive == []
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


def submitted(operator: OutboxSparkSubmitOperator) -> list[psutil.Process]:
    """spark-submit and what it has started; the test's own process may have another Spark beside it."""
    hook: Any = operator._hook
    top = psutil.Process(hook._submit_sp.pid)
    return [top, *top.children(recursive=True)]


def command(process: psutil.Process) -> str:
    """A process's command; nothing when it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def close_output(operator: OutboxSparkSubmitOperator) -> None:
    """Close the output that the provider's hook leaves open."""
    hook: Any = operator._hook
    hook._submit_sp.stdout.close()
