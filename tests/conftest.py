"""What all tests share: an Airflow home of their own, and real servers that start when the first test asks for them."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from psycopg.conninfo import make_conninfo
from support.distribution import Scheduling, in_order, room

ROOT = Path(__file__).resolve().parents[1]


def _isolate_airflow() -> None:
    """Before the first import of airflow, which reads its settings once.

    Nothing of the user's own Airflow is seen or touched.
    """
    for name in [name for name in os.environ if name.startswith(("AIRFLOW", "OPENLINEAGE"))]:
        del os.environ[name]
    home = tempfile.mkdtemp(prefix="airflow-outbox-home-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ |= {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


_isolate_airflow()

from airflow_outbox.demo.embedded.jars import kafka_jars  # noqa: E402
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka  # noqa: E402
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres  # noqa: E402

# How long an example takes depends on what else runs.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, default=500, help="how many simulated histories to run (default: %(default)s)"
    )
    parser.addoption("--server", help="another server (a superuser, in libpq form) for tests that need one database")
    parser.addoption("--seed", type=int, help="the only simulated history to run")
    parser.addoption(
        "--faults",
        choices=("short", "long"),
        default="short",
        help="how large the loads are and how long the faults last (default: %(default)s)",
    )


LONG_FORM = {
    "faults/spark/test_spark_cluster.py": ("[executor]", "[speculation]"),
    "faults/test_connections.py": (
        "half_open[both ways",
        "delayed[exactly_once-mark",
        "arrives_when_another_leads[exactly_once-mark",
    ),
    "faults/test_histories.py": (
        "a_leader_harvests[sequence set back]",
        "a_leader_harvests[table made anew]",
        "earlier_adoption",
        "overtake",
        "switch_over_in_order[]",
    ),
    "faults/test_poison.py": ("leave_the_others_their_speed",),
    "faults/test_servers_and_processes.py": ("restarted[at_least_once]", "at_once[at_least_once]"),
    "faults/test_take_over.py": ("[exactly_once-3.0]", "resigns", "two_seconds[at_least_once]"),
    "faults/test_turns.py": ("[(1, 4, 1)", "three_members_goes_on_within_three_seconds[1-"),
    "faults/test_zombies.py": (
        "no_effect[purge-",
        "no_effect[read the ledger-",
        "no_effect[read-",
        "no_effect[take over-",
        "witness_of_long_ago_is_not_recorded",
    ),
    "hostile/test_bad_days.py": ("_whole[at least once]", "another_lead[at least once]"),
    "hostile/test_brokers_away.py": ("[at least once", "[single"),
    "hostile/test_memory.py": ("[atomic]", "headers_count[at least once]", "a_few_at_a_time[at least once]"),
    "hostile/test_topics.py": ("hold_nobody_up[atomic]", "hold_nobody_up[at least once]"),
    "integration/airflow/test_published.py": ("triggerers_death",),
    "integration/airflow/test_triggerers.py": ("[with its processes]",),
    "integration/audit/test_memory.py": ("[999]",),
    "integration/spark/test_attempts.py": ("amid_rows", "before_rows-is killed", "staged-raises"),
    "integration/spark/test_audit.py": (
        "submitted",
        "test_it_agrees_with_the_command[1]",
        "test_it_agrees_with_the_command[2]",
    ),
    "integration/spark/test_docs.py": ("under_airflow",),
    "integration/spark/test_submit.py": ("demos_stream", "does_not_write", "on_a_cluster", "writes_a_stream"),
    "integration/test_servers.py": ("through_a_crash",),
    "secure/test_acls.py": ("[at_least_once]",),
    "integration/test_demo.py": ("a_task_that_fails",),
    "integration/test_benchmarks.py": ("larger_backlog", "dead_rows", "many_topics", "keep_up", "stream_has"),
}
"""Tests that take long and are near others of the same file: only the long form plays them."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--faults") != "long":
        _leave_out_the_long_form(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = in_order(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with room(item.nodeid):
        return (yield)


def _leave_out_the_long_form(config: pytest.Config, items: list[pytest.Item]) -> None:

    def is_left_out(item: pytest.Item) -> bool:
        file = item.path.relative_to(ROOT / "tests").as_posix()
        return any(name in item.name for name in LONG_FORM.get(file, ()))

    left_out = [item for item in items if is_left_out(item)]
    if len(left_out) == len(items):
        return  # they were asked for by name
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_unconfigure() -> None:
    # Py4J logs once more while the interpreter ends, to a stream that pytest has closed by then.
    logging.raiseExceptions = False


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """The folder of the session's servers.

    Not below pytest's own, which is closed to Postgres' user when the tests run as root.
    """
    folder = Path(tempfile.mkdtemp(prefix="airflow-outbox-tests-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def kafka_classpath() -> str:
    """Kafka's jars, for tests that start brokers of their own."""
    return kafka_jars(ROOT / ".dev" / "jars")


@pytest.fixture(scope="session")
def postgres(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    """The session's Postgres, shared: don't stop it, and use `database` for tables."""
    settings = {"max_prepared_transactions": "10"}
    with EmbeddedPostgres(server_folder / "postgres", fsync=False, settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def kafka(server_folder: Path, kafka_classpath: str) -> Iterator[EmbeddedKafka]:
    """The session's Kafka, shared: don't stop it; begin topics, groups and transactional ids with `topic_prefix`."""
    with EmbeddedKafka(server_folder / "kafka", classpath=kafka_classpath) as server:
        yield server


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The connection string of an empty database, for this test alone."""
    server = request.config.getoption("--server") or request.getfixturevalue("postgres").dsn()
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield make_conninfo(server, dbname=name)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


@pytest.fixture
def topic_prefix() -> str:
    """What this test's names on the shared Kafka begin with."""
    return f"test-{uuid.uuid4().hex[:12]}-"
