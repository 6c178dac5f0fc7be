"""The demo's servers together: Postgres with the outbox, Kafka with the topics, and an Airflow that knows both."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import yaml
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from psycopg import sql

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.jars import kafka_jars
from airflow_outbox.demo.embedded.java import find_java, java_home
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.ports import LOOPBACK
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.demo.flights import TOPICS
from airflow_outbox.demo.follow import DemoError

DATABASE = ROLE = "flights"
PARTITIONS = 4
_MARKER = ".airflow-outbox-demo"


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    """The demo's folder, empty, and for one demo at a time.

    Raises DemoError while another one runs in it, and for a folder with other files, which are left alone.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(
                f"another demo runs in {folder}. Stop it first, or give this one another --folder"
            ) from None
        marker = folder / _MARKER
        if folder.exists() and any(folder.iterdir()) and not marker.exists():
            raise DemoError(f"{folder} has files that are not a demo's, and would be emptied. Give another --folder")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        marker.touch()
        yield folder


class DemoServers:
    """Postgres, Kafka and Airflow in one folder. Call the start methods in their order; nothing runs before."""

    def __init__(self, folder: Path, *, dags: Path, jars: Path) -> None:
        self.configuration = folder / "outbox.yaml"
        self._password = secrets.token_urlsafe(16)
        self.postgres = EmbeddedPostgres(folder / "postgres")
        self.kafka = EmbeddedKafka(folder / "kafka", classpath=kafka_jars(jars))
        self.airflow = AirflowStandalone(
            folder / "airflow",
            dags=dags,
            connections={
                "flights_db": {
                    "conn_type": "postgres",
                    "host": LOOPBACK,
                    "port": self.postgres.port,
                    "schema": DATABASE,
                    "login": ROLE,
                    "password": self._password,
                },
                "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": self.kafka.bootstrap}},
                "spark_default": {"conn_type": "spark", "host": "local[2]"},
            },
            environment={
                "JAVA_HOME": str(java_home(find_java())),
                "SPARK_LOCAL_IP": LOOPBACK,
                "SPARK_LOCAL_DIRS": str(folder / "spark"),
            },
        )

    @property
    def data_source(self) -> str:
        """The connection string of the owner of the demo's tables."""
        return self.postgres.dsn(DATABASE, user=ROLE, password=self._password)

    def start_postgres(self) -> None:
        """Start Postgres, and make a database and the role that owns it."""
        self.postgres.start()
        with psycopg.connect(self.postgres.dsn(), autocommit=True) as connection:
            role, password = sql.Identifier(ROLE), sql.Literal(self._password)
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, password))
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(DATABASE), role))

    def start_kafka(self) -> None:
        """Start Kafka, and make the topics that the events go to."""
        self.kafka.start()
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 3})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS]).values():
            made.result(30.0)

    def make_outbox(self) -> str:
        """Make the outbox as a user does, by `airflow-outbox init`; return its output. Raises DemoError."""
        settings = {"data_source": self.data_source, "kafka": {"bootstrap.servers": self.kafka.bootstrap}}
        self.configuration.touch(mode=0o600)  # it has a password in it
        self.configuration.write_text(yaml.safe_dump(settings))
        command = [str(Path(sys.executable).with_name("airflow-outbox")), "init", "-f", str(self.configuration)]
        made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=_environment())
        if made.returncode != 0:
            raise DemoError(f"airflow-outbox init failed: {made.stderr.strip()}")
        return made.stdout.strip()

    def stop(self) -> None:
        """End all that runs. Airflow goes first, so the harvester ends before the servers it talks to."""
        with ExitStack() as stack:
            for server in (self.postgres, self.kafka, self.airflow):
                stack.callback(server.stop)


def _environment() -> dict[str, str]:
    """The present environment without libpq's variables, which would be added to the data source."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
