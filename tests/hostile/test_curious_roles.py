"""A curious role does all that Postgres lets it: the outbox's owner, harvester, operators and writers do not notice."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic
from hostile.traps import TRAP, lay_traps
from support.harvesting import COMMAND, PARTITIONS

from airflow_outbox import OutboxRecord, published, stash
from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.hooks.commits import earlier_ticket
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.soundness import require_sound
from airflow_outbox.postgres.statements import composed
from airflow_outbox.tickets.listener import Listener
from airflow_outbox.tickets.published import TicketState

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
        arguments = [*command.split(), "-f", str(file), *options]
        if command != "harvest":  # which ends its process
            result = CliRunner().invoke(main, arguments)
            assert result.exit_code == status, (result.output, result.exception)
            return result.output
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def make_outbox(self) -> None:
        self.command("owner", "init")
        granted = ("stash", "harvest", "look", "operate", "job")
        self.command("owner", "grant", *(f"--{role}={self.role(role)}" for role in granted), "--run")


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
    [shard] = json.loads(town.command("look", "status", "--output", "json"))["shards"]
    assert (shard["published"], shard["last_error"]) == (10, None)
    told = town.command("stash", "status", "--ticket", str(ticket), "--output", "json")
    assert json.loads(told)["state"] == "published"
    town.command("operate", "parked list")
    town.command("operate", "pause")
    town.command("operate", "resume")
    assert TRAP not in town.command("harvest", "check")


def test_a_table_that_is_there_already_must_be_the_owners(town: Town) -> None:
    """`outbox_archive`, made beforehand, would get all that is published."""
    problem = f"outbox_archive belongs to {town.role('curious')}"
    with town.connect("curious") as curious:
        curious.execute("CREATE TABLE outbox_archive (id bigint)")
        assert problem in town.command("owner", "init", status=1, purge="archive")
        curious.execute("DROP TABLE outbox_archive")
        town.make_outbox()
        curious.execute("CREATE TABLE outbox_archive (id bigint)")
        curious.execute(f"GRANT ALL ON outbox_archive TO {town.role('harvest')}, {town.role('owner')}".encode())
    assert problem in town.command("owner", "init", status=1, purge="archive")
    assert problem in town.command("harvest", "harvest", "--until", "drained", status=1, purge="archive")
    assert problem in town.command("harvest", "check", status=1, purge="archive")


STRANGE = {
    "ALTER TABLE outbox_parked SET UNLOGGED": "outbox_parked is unlogged",
    "CREATE RULE away AS ON DELETE TO outbox DO INSTEAD NOTHING": "outbox has the rule away",
    "ALTER TABLE outbox_shard ENABLE ROW LEVEL SECURITY": "outbox_shard has row level security",
    "ALTER TABLE outbox_commits RENAME TO mine; CREATE VIEW outbox_commits AS TABLE mine": "outbox_commits is a view",
    "CREATE TABLE child () INHERITS (outbox)": "outbox has tables that inherit from it",
    "GRANT TRIGGER ON outbox TO {curious}; SET ROLE {curious}; CREATE TRIGGER mine AFTER DELETE ON outbox"
    " FOR EACH ROW EXECUTE FUNCTION mine()": "outbox has the trigger mine",
    "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey": "outbox has no primary key",
}


def test_what_an_outbox_must_not_have_is_named(town: Town) -> None:
    town.make_outbox()
    name = OutboxName.parse("outbox")
    with psycopg.connect(town.server.dsn(town.database), autocommit=True) as anybody:
        anybody.execute("CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        anybody.execute(f"ALTER FUNCTION mine() OWNER TO {town.role('curious')}".encode())
        for changes, problem in STRANGE.items():
            with anybody.transaction(force_rollback=True):
                anybody.execute(changes.format(curious=town.role("curious")).encode())
                anybody.execute(f"RESET ROLE; SET LOCAL ROLE {town.role('harvest')}".encode())
                with pytest.raises(ConfigurationError, match=problem):
                    require_sound(anybody, name)
        anybody.execute(f"SET ROLE {town.role('harvest')}".encode())
        require_sound(anybody, name)


def test_a_commit_counts_for_the_role_that_entered_it(town: Town) -> None:
    """Another task's id is predictable: an entry of somebody else must not keep the task from writing."""
    town.make_outbox()
    for line in town.command("owner", "grant", "--job", town.role("curious")).splitlines():
        with town.connect("owner") as owner:
            owner.execute(line.encode())
    name = OutboxName.parse("outbox")
    forged = {"app_id": "airflow/shop/run/stash/-1", "version": 0, "records": 0}
    enter = composed("stash.commit_once", name)
    with town.connect("curious") as curious:
        assert curious.execute(enter, forged).fetchone() is not None
        for column, value in {"owner": f"'{town.role('job')}'", "transaction_id": "'7'::xid8"}.items():
            columns = f"(app_id, version, records, {column})"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                curious.execute(f"INSERT INTO outbox_commits {columns} VALUES ('a', 1, 1, {value})".encode())
    with town.connect("job") as job:
        assert earlier_ticket(job, name, app_id=forged["app_id"], version=0) is None
        assert job.execute(enter, {**forged, "records": 3}).fetchone() is not None
        assert earlier_ticket(job, name, app_id=forged["app_id"], version=0) is not None


def test_a_request_bears_the_name_of_who_asks(town: Town) -> None:
    town.make_outbox()
    with town.connect("owner") as owner, town.connect("operate") as operator:
        owner.execute(
            "INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys,"
            " kafka_header_values, transaction_id, incarnation) VALUES (1, now(), 't', 'k', '{}', '{}', '7', 1)"
        )
        for column in ("requested_by = 'somebody else'", "requested_at = now()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                operator.execute(f"UPDATE outbox_parked SET requested = 'discard', {column}".encode())
        operator.execute("UPDATE outbox_parked SET requested = 'discard', request_reason = 'why not'")
        asked = owner.execute("SELECT requested_by, requested_at > now() - interval '1 minute' FROM outbox_parked")
        assert asked.fetchall() == [(town.role("operate"), True)]


async def test_an_announcement_of_somebody_else_is_not_believed(town: Town) -> None:
    town.make_outbox()
    with town.connect("stash") as app, app.transaction():
        ticket = stash(app, OutboxRecord(town.topic, "k", "v"))
    town.command("harvest", "harvest", "--until", "drained")
    with town.connect("stash") as app, app.transaction():
        later = stash(app, OutboxRecord(town.topic, "k", "v"))
    told: list[TicketState] = []

    async def listen() -> None:
        async with aclosing(Listener(town.dsn("stash")).statuses(OutboxName.parse("outbox"), later)) as statuses:
            async for status in statuses:
                told.append(status.state)

    listening = asyncio.create_task(listen())
    with town.connect("curious") as curious:
        for _ in range(30):
            for text in ("0 1 1:99999999:", f"0 1 1:99999999: {'0' * 64}"):
                curious.execute("SELECT pg_notify(%s, %s)", [f"outbox {ticket.outbox_id}", text])
            await asyncio.sleep(0.1)
    listening.cancel()
    assert set(told) == {TicketState.WAITING}


SETTINGS = {
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "search_path": "",
    "synchronous_commit": "off",
    "standard_conforming_strings": "off",
}


def test_what_a_role_has_set_changes_nothing(town: Town) -> None:
    town.make_outbox()
    with psycopg.connect(town.server.dsn(town.database), autocommit=True) as superuser:
        for role in ("harvest", "look", "operate"):
            for name, value in SETTINGS.items():
                superuser.execute(f"ALTER ROLE {town.role(role)} SET {name} = '{value}'".encode())
    with town.connect("stash") as app, app.transaction():
        ticket = stash(app, OutboxRecord(town.topic, "k", "v"))
    settings = {"outbox_table": "public.outbox"}
    town.command("harvest", "harvest", "--until", "drained", **settings)
    with town.connect("stash") as app:
        assert published(app, ticket)
    [shard] = json.loads(town.command("look", "status", "--output", "json", **settings))["shards"]
    assert (shard["published"], shard["last_error"]) == (1, None)
    town.command("operate", "pause", **settings)
    town.command("operate", "parked list", **settings)
    assert "missing" not in town.command("harvest", "check", **settings)


async def test_nobody_harvests_a_table_that_may_keep_what_is_published(town: Town) -> None:
    town.make_outbox()
    table = PostgresTable(town.dsn("harvest"), OutboxName.parse("outbox"), Limits())
    await table.take_over(uuid.uuid4())
    with town.connect("owner") as owner:
        owner.execute("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        owner.execute("CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()")
    problem = "outbox has the trigger keep before a delete"
    with pytest.raises(ConfigurationError, match=problem):
        await table.take_over(uuid.uuid4())
    await table.close()
    assert problem in town.command("harvest", "check", status=1)
    assert problem in town.command("harvest", "harvest", "--until", "drained", status=1)
