"""One real Airflow for all tests here, outboxes on the real servers, and eyes for the processes that come and go."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.harvesting import CHILD as HARVESTER
from support.harvesting import PATIENCE, Outbox, PatienceExhaustedError, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.airflow_api import ENDED_STATES, AirflowApiError
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.positions_process import COMMAND as POSITIONS_COMMAND
from airflow_outbox.harvest.supervised_child import COMMAND
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import grant_statements

from .statsd import StatsdListener

ROLE = "harvester"
PASSWORD = "not-to-be-seen-4H7"
CHILD = COMMAND[-1]
MARKER = "OUTBOX_TESTS_SERVER"
"""The mark in the environment of all processes of this Airflow, adopted harvesting processes included."""
TRIGGERER_TIMEOUT = 10
"""How many seconds a triggerer may be silent before the others take its triggers."""


UNFINISHED = """
SELECT dag_id, run_id, task_id FROM task_instance JOIN dag_run USING (dag_id, run_id)
WHERE dag_run.state IN ('queued', 'running') AND (task_instance.state IS NULL OR task_instance.state <> ALL (%s))
"""
"""Tasks in Airflow's metadata that have not ended, and whose runs have not."""
DROPS = """
SELECT format('DROP TABLE IF EXISTS %s CASCADE', oid::regclass) FROM pg_class
WHERE relkind IN ('r', 'p') AND relname ~ '^{0}(_|$)'
UNION ALL
SELECT format('DROP FUNCTION IF EXISTS %s CASCADE', oid::regprocedure) FROM pg_proc WHERE proname ~ '^{0}_'
"""


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch) -> Outbox:
    """An outbox behind Airflow's default connections, in this process."""
    for conn_id, connection in connections(database, kafka).items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
    return make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")


def connections(database: str, kafka: EmbeddedKafka, **login: str) -> dict[str, dict[str, Any]]:
    server = conninfo_to_dict(database)
    known = {"host": server["host"], "port": int(server["port"]), "schema": server["dbname"]}
    known |= {"login": server["user"], "password": server["password"]}
    return {
        "postgres_default": {"conn_type": "postgres", **known, **login},
        "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap}},
    }


@pytest.fixture(scope="package")
def outboxes(postgres: EmbeddedPostgres, kafka: EmbeddedKafka) -> Iterator[dict[str, Outbox]]:
    """The outboxes of the Dags, by name; Airflow reaches them as a role that may harvest and stash, by password."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    database = postgres.create_database(name)
    tables = ("drained", "forever", "watched", "stashed", "steady_task", "steady_asset", "published")
    made = {
        table: make_outbox(database, bootstrap=kafka.bootstrap, topic=f"{name}-{table}", outbox_table=table)
        for table in tables
    }
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'".encode())
        connection.execute("CREATE TABLE business (run TEXT NOT NULL)")
        connection.execute(f"GRANT INSERT ON business TO {ROLE}".encode())
        for table in made:
            for role in ("harvest", "job"):
                for statement in grant_statements(connection, OutboxName.parse(table), role, ROLE):
                    connection.execute(statement.encode())
    yield made
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {ROLE}".encode())
    postgres.drop_database(name)
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(f"DROP ROLE {ROLE}".encode())


def drop(outbox: Outbox) -> None:
    """Leave nothing of it in the database."""
    for (statement,) in outbox.query(DROPS.format(outbox.name)):
        outbox.query(statement)


@pytest.fixture(scope="package")
def backup(server_folder: Path, kafka_classpath: str) -> Iterator[EmbeddedKafka]:
    """A second cluster, which Airflow has a connection to. A test that needs it starts it."""
    server = EmbeddedKafka(server_folder / f"airflow-{uuid.uuid4().hex[:8]}", classpath=kafka_classpath)
    yield server
    server.kill()


@pytest.fixture(scope="package")
def metadata(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The name of Airflow's metadata database."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgres.create_database(name)
    yield name
    postgres.drop_database(name)


@pytest.fixture(scope="package")
def statsd() -> Iterator[StatsdListener]:
    """Where Airflow sends its stats."""
    with contextlib.closing(StatsdListener()) as listener:
        yield listener


@pytest.fixture(scope="package")
def airflow(
    outboxes: dict[str, Outbox],
    metadata: str,
    statsd: StatsdListener,
    postgres: EmbeddedPostgres,
    kafka: EmbeddedKafka,
    backup: EmbeddedKafka,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AirflowStandalone]:
    """A real Airflow with the Dags of this folder, paused, and one real triggerer."""
    database = outboxes["drained"].database
    folder = tmp_path_factory.mktemp("airflow")
    known = connections(database, kafka, login=ROLE, password=PASSWORD)
    known["kafka_backup"] = {"conn_type": "kafka", "extra": {"bootstrap.servers": backup.bootstrap}}
    with AirflowStandalone(
        folder,
        dags=Path(__file__).parent / "dags",
        database=postgres.uri(metadata),
        connections=known,
        environment={
            MARKER: str(folder),
            "OUTBOX_TESTS_TOPIC": outboxes["published"].topic,
            # A pause reaches an asset's trigger when the Dag file is read again.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
            # An unreadable file is an error, and a busy machine reads slowly.
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "600",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(TRIGGERER_TIMEOUT),
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(statsd.port),
            "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",  # with tags
        },
        parallelism=2,
    ) as standalone:
        for dag in ("watching", "steady_asset"):
            standalone.api.wait_for_dag(dag, timeout=PATIENCE)
        yield standalone
        for process in processes_of(standalone, "triggerer"):  # left to end by itself it takes ten seconds
            process.kill()


class Harvester:
    """Harvests the outbox while it runs."""

    def __init__(self, outbox: Outbox) -> None:
        self._config = {
            "data_source": outbox.database,
            "outbox_table": outbox.name,
            "kafka": {"bootstrap.servers": outbox.bootstrap},
        }
        self._process: Process | None = None

    def start(self) -> None:
        self._process = Process(HARVESTER, first_line={"config": self._config, "until": "forever"})
        self._process.wait_for("view")

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.popen.terminate()
            try:
                process.ends()
            finally:
                process.end()


@pytest.fixture
def harvester(outboxes: dict[str, Outbox]) -> Iterator[Harvester]:
    """A harvester of the outbox `published`, which Airflow does not start. The test starts it."""
    harvester = Harvester(outboxes["published"])
    yield harvester
    harvester.stop()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of the real Airflow finds a triggerer, whatever a test before did to it, and leaves nothing at work."""
    if "airflow" not in request.fixturenames:
        yield
        return
    airflow: AirflowStandalone = request.getfixturevalue("airflow")
    metadata = request.getfixturevalue("postgres").dsn(request.getfixturevalue("metadata"))
    if not processes_of(airflow, "triggerer"):
        airflow.start_triggerer()
    print("Airflow's log:", airflow.log)
    yield
    clean_up(airflow, metadata)


def clean_up(airflow: AirflowStandalone, metadata: str) -> None:
    """Pause all Dags, end what is left of their runs, and wait until no process of ours is left."""

    def left() -> list[psutil.Process]:
        return [*harvesting(airflow), *processes_of(airflow, POSITIONS_COMMAND[-1])]

    def is_over() -> bool:
        with psycopg.connect(metadata) as connection:
            unpaused = connection.execute("SELECT dag_id FROM dag WHERE NOT is_paused").fetchall()
            unfinished = connection.execute(UNFINISHED, [[*ENDED_STATES]]).fetchall()
        for (dag_id,) in unpaused:
            airflow.api.pause(dag_id)
        for task in unfinished:
            with contextlib.suppress(AirflowApiError):  # it may have ended by itself
                airflow.api.mark(*task, "failed")
        return not unfinished and not left()

    try:
        wait_until(is_over, doing=lambda: f"the end of {left()}")
    except PatienceExhaustedError:
        for process in left():
            process.kill()
        raise


def processes_of(airflow: AirflowStandalone, word: str) -> list[psutil.Process]:
    """The processes of this Airflow, also those that it has lost, with this word on their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if word in process.cmdline() and process.environ().get(MARKER) == str(airflow.folder):
                found.append(process)
    return [process for process in found if not gone(process)]


def kill_triggerers(airflow: AirflowStandalone) -> None:
    processes = processes_of(airflow, "triggerer")
    for process in processes:
        process.kill()
    wait_until(lambda: all(gone(process) for process in processes), doing="the end of the triggerer")


@contextlib.contextmanager
def stopped_scheduler(airflow: AirflowStandalone) -> Iterator[None]:
    """Airflow's scheduler does nothing meanwhile."""
    processes = processes_of(airflow, "scheduler")
    assert processes
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def files_with(airflow: AirflowStandalone, text: str) -> list[Path]:
    """Which of this Airflow's files have a text, of those that have not gone meanwhile."""
    found = []
    for folder, _, names in os.walk(airflow.folder):
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(OSError):
                if path.is_file() and text.encode() in path.read_bytes():
                    found.append(path)
    return found


def wait_until_deferred(airflow: AirflowStandalone, dag_id: str, run_id: str, task_id: str) -> None:
    """Wait until a task is deferred and the scheduler knows that its worker has ended: when the trigger fires before,
    Airflow may fail it.
    """
    airflow.api.wait_for_task(dag_id, run_id, task_id, "deferred", timeout=PATIENCE)
    workload = str(airflow.api.task(dag_id, run_id, task_id)["id"])

    def is_known() -> bool:
        lines = airflow.log.read_text(errors="replace").splitlines()
        return any("TaskInstance Finished" in line and workload in line for line in lines)

    wait_until(is_known, doing="the end of the worker")


def wait_for_log(airflow: AirflowStandalone, dag_id: str, run_id: str, task_id: str, text: str) -> str:
    """Wait until a task's log has a text; the log."""
    logs: list[str] = []

    def has_it() -> bool:
        logs.append(airflow.api.task_log(dag_id, run_id, task_id))
        return text in logs[-1]

    airflow.api.wait(has_it, timeout=PATIENCE, what=f"{text!r} in the log of {dag_id}.{task_id}")
    return logs[-1]


def harvesting(airflow: AirflowStandalone) -> list[psutil.Process]:
    """The harvesting processes of this Airflow."""
    return processes_of(airflow, CHILD)


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
