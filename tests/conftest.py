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

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _isolate_airflow() -> None:
    """Before the first import of airflow, which reads its settings once.

    Nothing of the user's own Airflow is seen or touched.
    """
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
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

from airflow_outbox.demo.jars import kafka_jars  # noqa: E402
from airflow_outbox.demo.kafka import EmbeddedKafka  # noqa: E402
from airflow_outbox.demo.postgres import EmbeddedPostgres  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, default=2000, help="how many simulated histories to run (default: %(default)s)"
    )
    parser.addoption("--seed", type=int, help="the only simulated history to run")
    parser.addoption(
        "--faults",
        choices=("short", "long"),
        default="short",
        help="how large the loads are and how long the faults last (default: %(default)s)",
    )


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
def database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The connection string of an empty database, for this test alone."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def topic_prefix() -> str:
    """What this test's names on the shared Kafka begin with."""
    return f"test-{uuid.uuid4().hex[:12]}-"
