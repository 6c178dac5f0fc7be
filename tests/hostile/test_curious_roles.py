"""A curious role does all that Postgres lets it: the outbox's owner, harvester, operators and writers do not notice."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from harvesting import COMMAND, PARTITIONS
from hostile.traps import TRAP, lay_traps

from airflow_outbox import OutboxRecord, published, stash
from airflow_outbox.demo.kafka import EmbeddedKafka
from airflow_outbox.demo.postgres import EmbeddedPostgres

PASSWORD = "for this test"
ROLES = ("owner", "stash", "harvest", "look", "operate", "job", "curious")


@dataclass(slots=True)
class Town:
    """A database with a role for each thing that is done with an outbox, and one that has no business here."""

    server: EmbeddedPostgres
    database: str
    folder: Path
    bootstrap: str
    topic: str
    suffix: str

    def role(self, name: str) -> str:
        return f"{name}_{self.suffix}"

    def dsn(self, name: str) -> str:
        return self.server.dsn(self.database, user=self.role(name), password=PASSWORD)

    def connect(self, name: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn(name), autocommit=True)

    def command(self, role: str, *words: str, status: int = 0, **more: str) -> str:
        """What a command says that this role runs, with these settings, too."""
        file = self.folder / f"{role}.yaml"
        settings = {"data_source": self.dsn(role), "kafka": {"bootstrap.servers": self.bootstrap}, **more}
        file.write_text(yaml.safe_dump(settings))
        command, *options = words
        done = subprocess.run(
            [*COMMAND, *command.split(), "-f", str(file), *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def make_outbox(self) -> None:
        self.command("owner", "init")
        for role in ("stash", "harvest", "look", "operate", "job"):
            self.command("owner", "grant", f"--{role}", self.role(role), "--run")


@pytest.fixture
def town(
    postgres: EmbeddedPostgres, database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Iterator[Town]:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    town = Town(postgres, str(name), tmp_path, kafka.bootstrap, topic_prefix + "data", uuid.uuid4().hex[:8])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(town.topic, PARTITIONS, 1)])[town.topic].result()
    with psycopg.connect(database, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(f"CREATE ROLE {town.role(role)} LOGIN PASSWORD '{PASSWORD}'".encode())
        connection.execute(f"ALTER DATABASE {name} OWNER TO {town.role('owner')}".encode())
        connection.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")  # as it was up to Postgres 14
        yield town
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        postgres.drop_database(str(name))
        for role in ROLES:
            connection.execute(f"DROP ROLE {town.role(role)}".encode())


def test_functions_and_operators_of_others_are_not_called(town: Town) -> None:
    with town.connect("curious") as curious:
        lay_traps(curious)
        with pytest.raises(psycopg.errors.RaiseException, match=TRAP):
            curious.execute("SELECT array_agg('a'::text)")
    town.make_outbox()
    with town.connect("stash") as app, app.transaction():
        ticket = stash(app, [OutboxRecord(town.topic, f"k{n}", str(n), {"n": str(n)}) for n in range(10)])
    town.command("harvest", "harvest", "--until", "drained")
    with town.connect("stash") as app:
        assert published(app, ticket)
    assert "10" in town.command("look", "status")
    assert "published" in town.command("stash", "status", "--ticket", str(ticket))
    town.command("operate", "parked list")
    town.command("operate", "pause")
    town.command("operate", "resume")
    assert TRAP not in town.command("harvest", "check")
