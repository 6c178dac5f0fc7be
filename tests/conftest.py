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
from support.distribution import Scheduling, in_order, is_alone, room, tell_the_scheduler

ROOT = Path(__file__).resolve().parents[1]
pytest_plugins = ["support.fixtures"]


def _prepare_environment() -> None:
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
        # Brokers and Spark's drivers live for seconds here: to compile them well would take longer than they run.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


_prepare_environment()

from airflow_outbox.demo.embedded.jars import kafka_jars  # noqa: E402
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka  # noqa: E402
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres  # noqa: E402

# How long an example takes depends on what else runs.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, default=200, help="how many simulated histories to run (default: %(default)s)"
    )
    parser.addoption("--server", help="another server (a superuser, in libpq form) for tests that need one database")
    parser.addoption("--seed", type=int, help="the only simulated history to run")
    parser.addoption(
        "--faults",
        choices=("short", "long"),
        default="short",
        help="how large the loads are and how long the faults last (default: %(default)s)",
    )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--faults") != "long":
        _leave_out_the_long_form(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = in_order(items)
        tell_the_scheduler(config.cache, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with room(alone=is_alone(item)):
        return (yield)


def _leave_out_the_long_form(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if _is_long(item)]
    if len(left_out) == len(items):
        return  # they were asked for by name
    items[:] = [item for item in items if not _is_long(item)]
    config.hook.pytest_deselected(items=left_out)


def _is_long(item: pytest.Item) -> bool:
    """Whether only the long form plays it: by one of its markers, whose parameters, if any, all have these values."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    marks = list(item.iter_markers("long"))
    for mark in marks:
        if not mark.kwargs.keys() <= parameters.keys():
            raise pytest.UsageError(f"{item.nodeid} has no parameters {', '.join(mark.kwargs)}; its marker names them")
    return any(mark.kwargs.items() <= parameters.items() for mark in marks)


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
    properties = {"group.min.session.timeout.ms": "1000"}  # no successor need wait for long
    with EmbeddedKafka(server_folder / "kafka", classpath=kafka_classpath, properties=properties) as server:
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
