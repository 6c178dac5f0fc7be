"""Shared by all tests: an Airflow home of their own, and real servers that start when the first test asks for them."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg.conninfo import make_conninfo
from support.distribution import Scheduling, Turn, in_order, room_of, tell_the_scheduler

ROOT = Path(__file__).resolve().parents[1]
_TURN = pytest.StashKey[Turn]()
pytest_plugins = ["support.fixtures", "support.gate"]


gc.disable()  # until all tests are collected: little of what is imported is garbage


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

from support.older_postgres import RELEASES, OlderPostgres  # noqa: E402

from airflow_outbox.demo.embedded.jars import kafka_jars  # noqa: E402
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka  # noqa: E402
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres  # noqa: E402
from airflow_outbox.postgres import verdict_facts  # noqa: E402

# How long it takes to draw an example and to try it depends on what else runs.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
verdict_facts._BRIEFLY = 60_000  # on a busy machine they would be unknown


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, help="how many simulated histories to run (default: 90, and 30 more of this commit alone)"
    )
    parser.addoption("--first", type=int, help="the first of these seeds (default: 0)")
    parser.addoption("--postgres", choices=RELEASES, help="an older Postgres for tests that need one database")
    parser.addoption("--pictures", action="store_true", help="draw the docs' pictures of the page again")
    parser.addoption("--seed", type=int, help="the only simulated history to run, or what happens at random")
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
    gc.freeze()  # no later look for garbage goes through what stays
    gc.enable()
    if config.getoption("--faults") != "long":
        _leave_out_the_long_form(config, items)
    for item in items:
        if config.getoption("--faults") == "long" or _is_long(item):
            item.add_marker(pytest.mark.timeout(0))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = in_order(items)
        tell_the_scheduler(config.cache, items)
        config.stash[_TURN] = Turn(config.cache.mkdir("outbox-rooms"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # a wait for the turn does not count against the test's time
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    if _TURN in item.config.stash:
        item.config.stash[_TURN].enter(room_of(item))
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


def pytest_unconfigure(config: pytest.Config) -> None:
    if _TURN in config.stash:
        config.stash[_TURN].close()
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
        server.kill()  # nobody needs what it has


@pytest.fixture(scope="session")
def kafka(server_folder: Path, kafka_classpath: str) -> Iterator[EmbeddedKafka]:
    """The session's Kafka, shared: don't stop it; begin topics, groups and transactional ids with `topic_prefix`."""
    properties = {
        "group.min.session.timeout.ms": "1000",  # no successor need wait for long
        # Nobody starts it again; and its controller must not give it up when a busy machine keeps it waiting.
        "broker.session.timeout.ms": "120000",
    }
    with EmbeddedKafka(server_folder / "kafka", classpath=kafka_classpath, properties=properties) as server:
        yield server
        server.kill()  # nobody needs what it has


@pytest.fixture(scope="session")
def older_postgres(server_folder: Path) -> Iterator[Callable[[str], EmbeddedPostgres]]:
    """Start a server of an earlier major release, such as `13`, shared like `postgres`."""
    with ExitStack() as servers:
        yield cache(
            lambda release: servers.enter_context(
                OlderPostgres(server_folder / f"postgres-{release}", release, cache=ROOT / ".dev" / "jars")
            )
        )


@pytest.fixture(scope="session")
def database_server(request: pytest.FixtureRequest) -> str:
    """The superuser's connection string of the server that `database` uses; a test may name its release."""
    release = getattr(request, "param", None) or request.config.getoption("--postgres")
    server = request.getfixturevalue("older_postgres")(release) if release in RELEASES else None
    return str((server or request.getfixturevalue("postgres")).dsn())


@pytest.fixture
def database(database_server: str) -> Iterator[str]:
    """The connection string of an empty database, for this test alone."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(database_server, autocommit=True) as connection:
        # Without fsync, copying files takes a third of the time that logging each page takes. Releases before 15 copy.
        strategy = " STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""
        connection.execute(f"CREATE DATABASE {name}{strategy}".encode())
    yield make_conninfo(database_server, dbname=name)
    with psycopg.connect(database_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


@pytest.fixture
def topic_prefix() -> str:
    """The prefix of this test's names on the shared Kafka."""
    return f"test-{uuid.uuid4().hex[:12]}-"
