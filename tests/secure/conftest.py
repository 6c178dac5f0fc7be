"""The secure broker of this folder, and outboxes whose harvester has a user of its own there."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import sql
from secure.broker import Acl, SecureKafka
from secure.disks import MEGABYTE, Disk, small_file_system
from support.harvesting import CHILD, COMMAND, PARTITIONS, Outbox, Process

from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.demo.embedded.unprivileged import server_user
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

Start = Callable[..., Process]
MakeOutbox = Callable[..., "SecureOutbox"]


class SecureOutbox(Outbox):
    """An outbox in a database of its own, and the user who may harvest it."""

    kafka: SecureKafka
    user: str
    leader_topic: str
    acls: list[Acl]

    def make_tables(self) -> None:
        with psycopg.connect(self.database, autocommit=True) as connection:
            init_outbox(connection, OutboxName.parse("outbox"))


@pytest.fixture(scope="package")
def secure(server_folder: Path, kafka_classpath: str) -> Iterator[SecureKafka]:
    """The folder's secure broker, shared: don't stop it."""
    with SecureKafka(server_folder / f"secure-{uuid.uuid4().hex[:8]}", classpath=kafka_classpath) as kafka:
        yield kafka
        kafka.server.kill()  # nobody needs what it has


@pytest.fixture
def make_outbox(postgres: EmbeddedPostgres, secure: SecureKafka) -> Iterator[MakeOutbox]:
    """Make an outbox with a data topic, and a user by SCRAM who may do all, or with `allowed=False` nothing."""
    databases: list[str] = []

    def make(*, allowed: bool = True) -> SecureOutbox:
        name = f"secure-{uuid.uuid4().hex[:12]}"
        databases.append(name)
        outbox = SecureOutbox(postgres.create_database(name), secure.server.bootstrap, f"{name}.data")
        outbox.kafka, outbox.user = secure, name
        outbox.leader_topic = f"{name}.leader"
        secure.add_user(name, "pässword")
        secure.make_topic(outbox.topic, partitions=PARTITIONS)
        outbox.settings = {
            "data_source": outbox.database,
            "kafka": secure.login(name, "pässword"),
            "leader_topic": outbox.leader_topic,
            "leader_group_id": name,
            "ledger_topic": f"{name}.ledger",
            "transactional_id": name,
        }
        outbox.acls = [
            Acl("GROUP", name, "READ"),
            Acl("TOPIC", outbox.leader_topic, "READ"),
            Acl("TOPIC", outbox.leader_topic, "WRITE"),
            Acl("TOPIC", f"{name}.ledger", "READ"),
            Acl("TOPIC", f"{name}.ledger", "WRITE"),
            Acl("TRANSACTIONAL_ID", f"{name}.0.0", "WRITE"),
            Acl("TRANSACTIONAL_ID", f"{name}.0.1", "WRITE"),
            Acl("TOPIC", outbox.topic, "WRITE"),
        ]
        if allowed:
            outbox.make_tables()
            secure.make_topic(outbox.leader_topic)
            secure.make_topic(f"{name}.ledger")
            secure.allow(name, outbox.acls)
        return outbox

    yield make
    for name in databases:
        postgres.drop_database(name)


@pytest.fixture
def disks(postgres: EmbeddedPostgres, server_folder: Path) -> Iterator[list[Disk]]:
    with contextlib.ExitStack() as stack, psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        made: list[Disk] = []
        for tablespace in ("disk_of_marks", "disk_of_parked"):
            folder = stack.enter_context(small_file_system(server_folder / tablespace, 8 * MEGABYTE))
            made.append(Disk(tablespace, folder))
            if folder is not None:
                space = folder / "space"
                space.mkdir()
                shutil.chown(space, server_user())
                connection.execute(f"CREATE TABLESPACE {tablespace} LOCATION '{space}'".encode())
                stack.callback(connection.execute, f"DROP TABLESPACE {tablespace}".encode())
        yield made
        stack.close()


@pytest.fixture
def roles(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Removes the roles that `secure.outliving` makes."""
    yield
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        for (role,) in connection.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'secure-%'").fetchall():
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a harvester of an outbox, in any thread: as the command, or as the child; `program` is another one in its
    place. Its stderr goes to a file.
    """
    started: list[Process] = []
    numbers = itertools.count()

    def start(
        outbox: Outbox,
        *,
        child: bool = False,
        until: str = "forever",
        program: Sequence[str] | None = None,
        **more: Any,
    ) -> Process:
        number = next(numbers)
        log = tmp_path / f"harvester-{number}.log"
        if child:
            first_line = {"config": outbox.settings, "until": until, **more}
            process = Process(list(program or CHILD), first_line=first_line, log=log)
        else:
            file = tmp_path / f"outbox-{number}.yaml"
            file.write_text(yaml.safe_dump(outbox.settings))
            arguments = ["harvest", "-f", str(file), "--until", until]
            process = Process([*(program or COMMAND), *arguments], log=log, **more)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()
