"""The ways to change a database's history: restores, fail-overs, tables and topics that are exchanged."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient
from support.harvesting import CHILD, PATIENCE, Outbox, PatienceExhaustedError, Process, wait_until

from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable

QUIET = 2.0  # seconds in which nothing must happen


@dataclass(slots=True)
class Stage:
    """An outbox on a Postgres of its own, its harvesters and its operator."""

    outbox: Outbox
    server: EmbeddedPostgres
    folder: Path
    started: list[Process] = field(default_factory=list)

    def harvester(self, *, until: str = "forever", command: list[str] | None = None, **settings: Any) -> Process:
        config = {**self.outbox.settings, **settings}
        process = Process(command or CHILD, first_line={"config": config, "until": until})
        self.started.append(process)
        return process

    def drain(self) -> None:
        """Harvest all there is, by a member that then ends."""
        process = self.harvester(until="drained")
        process.ends()
        assert process.popen.returncode == 0, process.events

    def refuses(self, process: Process, reason: str) -> None:
        """A harvester says why it does not go on, and for a while nothing is published or purged."""
        with told(process):
            wait_until(lambda: any(reason in error for error in errors_of(process)), doing=reason)
        published, left = len(self.outbox.published()), self.outbox.left()
        since = len(process.events)
        wait_until(lambda: len(process.events) > since + QUIET, within=PATIENCE, doing="it is silent")
        assert len(self.outbox.published()) == published
        assert self.outbox.left() == left

    def adopt(self, *options: str) -> str:
        """Accept what is there, as an operator does."""
        return self.command("adopt", "--reason", "a test", "--yes", *options)

    def command(self, name: str, *options: str) -> str:
        done = self._run(name, *options)
        may_end_with = (0, 3) if name == "status" else (0,)  # 3: nobody leads for a moment
        assert done.exit_code in may_end_with, done.output
        return done.stdout

    def refused(self, name: str, *options: str) -> str:
        """The error of a command that refuses."""
        done = self._run(name, *options)
        assert done.exit_code == 1, done.output
        return done.stderr

    def try_command(self, name: str, *options: str) -> str:
        """A command's output, whether it succeeds or not."""
        return self._run(name, *options).output

    def _run(self, name: str, *options: str) -> Result:
        """In this process: one more would have to start."""
        file = self.folder / "outbox.yaml"
        file.write_text(yaml.safe_dump(self.outbox.settings))
        done = CliRunner().invoke(main, [*name.split(), "-f", str(file), *options])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    def is_drained(self, *, within: float = PATIENCE) -> None:
        with told(*self.started):
            wait_until(lambda: self.outbox.left() == 0, within=within)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.outbox.database) as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]

    def use_up_transaction_ids(self, count: int = 1000) -> None:
        """So that what comes next has higher ones than what was harvested."""
        self.execute(
            "CREATE PROCEDURE use_up(count integer) LANGUAGE plpgsql AS $$ BEGIN FOR n IN 1..count LOOP "
            "PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
        )
        with psycopg.connect(self.outbox.database, autocommit=True) as connection:
            connection.execute(f"CALL use_up({count})")  # type: ignore[call-overload]

    def recreate_table(self) -> None:
        """Drop the outbox's table, and make another in its place."""
        with psycopg.connect(self.outbox.database) as connection:
            init_outbox(connection, OutboxName.parse("another"))
            connection.execute("DROP TABLE outbox")
            connection.execute("ALTER TABLE another RENAME TO outbox")

    @property
    def names(self) -> KafkaNames:
        config = HarvestConfig.validated(self.outbox.settings, source="test")
        with psycopg.connect(self.outbox.database) as connection:
            return KafkaNames.of(config, OutboxTable(connection, config.name).identity().outbox_id)

    def delete_topic(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.outbox.bootstrap})
        admin.delete_topics([topic])[topic].result(PATIENCE)
        wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE).topics, doing="deleting a topic")

    @contextmanager
    def stopped_server(self) -> Iterator[Path]:
        """Its data, while nobody uses it."""
        self.server.stop()
        try:
            yield (self.server.folder / "data").resolve()
        finally:
            self.server.start()

    def back_up(self) -> Path:
        """A cold copy."""
        with self.stopped_server() as data:
            copy = data.with_name(f"{data.name}-backup")
            shutil.rmtree(copy, ignore_errors=True)
            copy_as_it_is(data, copy)
        return copy

    def restore(self, copy: Path) -> None:
        with self.stopped_server() as data:
            shutil.rmtree(data)
            copy_as_it_is(copy, data)

    def use(self, server: EmbeddedPostgres, database: str) -> None:
        """From now on, the outbox is on another server."""
        self.server = server
        self.outbox.database = self.outbox.settings["data_source"] = server.dsn(database)

    def close(self) -> None:
        for process in self.started:
            process.end()


@contextmanager
def told(*processes: Process) -> Iterator[None]:
    """Add what harvesters have said to a failure."""
    try:
        yield
    except (AssertionError, PatienceExhaustedError) as error:
        raise type(error)(f"{error}: {[process.events[-8:] for process in processes]}") from None


def errors_of(process: Process, *, since: int = 0) -> list[str]:
    """What it has reported since it had announced so many events."""
    return [event["error"] for event in process.events[since:] if event["event"] == "error"]


def copy_as_it_is(source: Path, target: Path) -> None:
    """With owners and modes."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def replica(primary: EmbeddedPostgres, folder: Path) -> EmbeddedPostgres:
    """An asynchronous replica, not yet started."""
    data = (primary.folder / "data").resolve()
    access = data / "pg_hba.conf"
    if "replication" not in access.read_text():
        access.write_text(access.read_text() + "host replication postgres 127.0.0.1/32 trust\n")
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
    server = EmbeddedPostgres(folder, fsync=False)
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    subprocess.run(
        [
            *(primary.programs / "pg_basebackup", "-D", folder / "data", "-R", "--checkpoint=fast", "--no-sync"),
            *("-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"),
        ],
        check=True,
        cwd="/",
        env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
    )
    owner = data.stat()
    for path in [folder / "data", *(folder / "data").rglob("*")]:
        os.chown(path, owner.st_uid, owner.st_gid)
    return server


def promote(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        assert connection.execute("SELECT pg_promote(wait := true)").fetchone() == (True,)


def has_caught_up(primary: EmbeddedPostgres, follower: EmbeddedPostgres) -> bool:
    with psycopg.connect(primary.dsn()) as there, psycopg.connect(follower.dsn()) as here:
        [written] = there.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or (None,)
        found = here.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,)).fetchone()
    return found == (True,)
