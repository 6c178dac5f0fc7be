"""Bad days: what happens to a harvester that runs, what it says of it, how quietly it waits, and how it goes on."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from harvesting import Outbox, Process, wait_until
from harvesting import make_outbox as make_plain_outbox
from psycopg import sql
from psycopg.conninfo import make_conninfo
from secure.conftest import MakeOutbox, SecureOutbox, Start

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.kafka import EmbeddedKafka
from airflow_outbox.demo.postgres import EmbeddedPostgres
from airflow_outbox.demo.process import ServerError
from airflow_outbox.demo.unprivileged import server_user
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.schema import grant_statements

WATCHED = 10.0
MOST_CPU = 1.0  # seconds while watched; a loop that waits for nothing takes them all
MOST_LINES = 30  # while watched; ten of them are progress
RECORDS = 20
MANY = 2000  # so many that marking them needs pages of their own
MEGABYTE = 1024 * 1024
TABLESPACE = "small_disk"
NO_ROOM = "No space left on device.*Make room on the disk of Postgres"


@dataclass(frozen=True, slots=True)
class BadDay:
    """What goes wrong, with records that wait; what must be said of it; and how it is mended."""

    says: str
    damage: Callable[[SecureOutbox], None]
    mend: Callable[[SecureOutbox], None]


def execute(outbox: Outbox, *statements: str) -> None:
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def statements(damage: str, mend: str, says: str) -> BadDay:
    """A bad day by SQL; `HARVESTER` is the harvester's role."""

    def run(text: str, outbox: SecureOutbox) -> None:
        execute(outbox, *text.replace("HARVESTER", f'"{outbox.user}"').split("; "))

    def do_damage(outbox: SecureOutbox) -> None:
        run(damage, outbox)
        outbox.stash(RECORDS)

    return BadDay(says, do_damage, lambda outbox: run(mend, outbox))


def privilege(what: str, says: str) -> BadDay:
    """A bad day without something that `grant` gives."""
    also = "; REVOKE USAGE ON SCHEMA public FROM PUBLIC" if "SCHEMA" in what else ""
    damage = f"REVOKE {what.replace(' TO ', ' FROM ')}{also}"
    return statements(damage, f"GRANT {what}", rf"permission denied for {says}.*`airflow-outbox grant`")


def missing(table: str) -> BadDay:
    """A bad day without a table; who stashes has one, too."""

    def mend(outbox: SecureOutbox) -> None:
        execute(outbox, f"ALTER TABLE gone RENAME TO {table}")
        outbox.stash(RECORDS)

    rename = f"ALTER TABLE {table} RENAME TO gone"
    return BadDay("Run `airflow-outbox init`", lambda outbox: execute(outbox, rename), mend)


def header(values: str, says: str) -> BadDay:
    """A bad day by one bad row."""

    def damage(outbox: SecureOutbox) -> None:
        with psycopg.connect(outbox.database) as connection:
            stash(connection, [OutboxRecord(outbox.topic, "k", str(n), {"n": str(n)}) for n in range(RECORDS)])
            connection.execute(f"UPDATE outbox SET kafka_header_values = {values} WHERE kafka_value = '5'".encode())

    right = "UPDATE outbox SET kafka_header_values = ARRAY['5'] WHERE kafka_value = '5'"
    return BadDay(f"{says}. Correct the row", damage, lambda outbox: execute(outbox, right))


def permission(number: int) -> BadDay:
    """A bad day without something that `check --acls` lists."""

    def damage(outbox: SecureOutbox) -> None:
        outbox.kafka.forbid(outbox.user, [outbox.acls[number]])
        outbox.stash(RECORDS)

    return BadDay(
        r"Kafka does not allow (READ|WRITE) on (group|topic) \S+\. `airflow-outbox check --acls",
        damage,
        lambda outbox: outbox.kafka.allow(outbox.user, [outbox.acls[number]]),
    )


def full_disk(disk: Path | None) -> BadDay:
    """A bad day without room for another page: really, or else by a trigger that raises the same error."""
    if disk is None:
        day = statements(
            "CREATE TRIGGER full_disk BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION full_disk()",
            "DROP TRIGGER full_disk ON outbox",
            NO_ROOM,
        )

        def pretend(outbox: SecureOutbox) -> None:
            execute(
                outbox,
                "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$",
            )
            day.damage(outbox)

        return BadDay(NO_ROOM, pretend, day.mend)
    ballast = disk / "ballast"

    def damage(outbox: SecureOutbox) -> None:
        execute(outbox, f"ALTER TABLE outbox SET TABLESPACE {TABLESPACE}")
        with psycopg.connect(outbox.database) as connection:
            stash(connection, [OutboxRecord(outbox.topic, "k", "v" * 500) for _ in range(MANY)])
            fill(ballast)

    return BadDay(NO_ROOM, damage, lambda _: ballast.unlink())


BAD_DAYS = {
    "may not select": privilege("SELECT ON outbox TO HARVESTER", "table outbox"),
    "may not delete": privilege("DELETE ON outbox TO HARVESTER", "table outbox"),
    "may not mark": privilege("UPDATE (leader_id) ON outbox TO HARVESTER", "table outbox"),
    "may not look at the fence": privilege("SELECT ON outbox_leader TO HARVESTER", "table outbox_leader"),
    "may not write the fence": privilege("UPDATE ON outbox_leader TO HARVESTER", "table outbox_leader"),
    "may not enter the schema": privilege("USAGE ON SCHEMA public TO HARVESTER", "schema public"),
    "the password is another": statements(
        "ALTER ROLE HARVESTER PASSWORD 'another'; "
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND usename = datname",
        "ALTER ROLE HARVESTER PASSWORD 'pw'",
        "password authentication failed for user.*Check the data source",
    ),
    "the table is gone": missing("outbox"),
    "the fence is gone": missing("outbox_leader"),
    "a header is null": header("ARRAY[NULL]", "a header's name or value is null"),
    "a header is missing": header("'{}'", "1 header names for 0 header values"),
    "not allowed in the group": permission(0),
    "not allowed to read heartbeats": permission(1),
    "not allowed to send heartbeats": permission(2),
    "not allowed to publish": permission(3),
}
# Who leads and isn't heard steps down after the heartbeat timeout, and so may have harvested all.
MAY_BE_DONE = {
    "not allowed in the group",
    "the table is gone",
    "the fence is gone",
    "not allowed to read heartbeats",
    "not allowed to send heartbeats",
}


@contextlib.contextmanager
def small_file_system(folder: Path, size: int) -> Iterator[Path | None]:
    """Mount one of so many bytes in a new folder; None for who may not mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(ballast: Path) -> None:
    """Write until there is no more room."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


@pytest.fixture
def small_disk(postgres: EmbeddedPostgres, server_folder: Path) -> Iterator[Path | None]:
    """A disk with a tablespace; None for who may not mount one."""
    with small_file_system(server_folder / "small", 4 * MEGABYTE) as folder:
        if folder is None:
            yield None
            return
        space = folder / "space"
        space.mkdir()
        shutil.chown(space, server_user())
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE {TABLESPACE} LOCATION '{space}'".encode())
            yield folder
            connection.execute(f"DROP TABLESPACE {TABLESPACE}".encode())


@pytest.fixture
def roles(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Removes the roles that `as_a_role` makes."""
    yield
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        for (role,) in connection.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'secure-%'").fetchall():
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def as_a_role(outbox: SecureOutbox) -> None:
    """Let the harvester be a role of its own in Postgres, with what `grant` gives."""
    outbox.settings |= {
        "data_source": make_conninfo(outbox.database, user=outbox.user, password="pw"),
        "outbox_table": "public.outbox",
    }
    name = HarvestConfig.validated(outbox.settings, source="test").name
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'pw'").format(sql.Identifier(outbox.user)))
        for line in grant_statements(connection, name, "harvest", outbox.user):
            connection.execute(line.encode())


def runs(kafka: EmbeddedKafka) -> bool:
    try:
        return kafka.pid > 0
    except ServerError:
        return False


def cpu_seconds(process: Process) -> float:
    fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lines(process: Process) -> int:
    assert process.log is not None
    return len(process.events) + len(process.log.read_text().splitlines())


def errors(process: Process) -> list[str]:
    return [event["error"] for event in process.events if event["event"] == "error"]


@dataclass(frozen=True, slots=True)
class Watch:
    """How busy a process was while it was watched."""

    cpu: float
    lines: int


def watch(processes: dict[str, Process]) -> dict[str, Watch]:
    before = {name: (cpu_seconds(process), lines(process)) for name, process in processes.items()}
    time.sleep(WATCHED)
    return {
        name: Watch(cpu_seconds(process) - before[name][0], lines(process) - before[name][1])
        for name, process in processes.items()
    }


@pytest.mark.usefixtures("roles")
def test_bad_days(
    small_disk: Path | None,
    make_outbox: MakeOutbox,
    start: Start,
    database: str,
    server_folder: Path,
    kafka_classpath: str,
) -> None:
    """All at once, each for an outbox of its own: each has to be watched for a while."""
    with ThreadPoolExecutor(1) as thread:
        broker = thread.submit(outlives_a_broker_whose_disk_is_full, database, server_folder, kafka_classpath, start)
        outlives_what_is_mended(make_outbox, start, small_disk)
        broker.result()


def outlives_what_is_mended(make_outbox: MakeOutbox, start: Start, small_disk: Path | None) -> None:
    days = {**BAD_DAYS, "the disk is full": full_disk(small_disk)}
    outboxes = {name: make_outbox() for name in days}
    for outbox in outboxes.values():
        as_a_role(outbox)
    processes = {name: start(outbox) for name, outbox in outboxes.items()}
    for process in processes.values():
        process.wait_for("progress", within=60, standing="leading")
    for name, day in days.items():
        day.damage(outboxes[name])
    for name, day in days.items():
        wait_until(
            lambda day=day, name=name: any(re.search(day.says, error) for error in errors(processes[name])),
            within=40,
            doing=name,
        )
    watched = watch(processes)
    assert {name: seen for name, seen in watched.items() if seen.cpu > MOST_CPU or seen.lines > MOST_LINES} == {}
    assert {name for name in days if processes[name].popen.poll() is not None} == set()
    assert {name for name, outbox in outboxes.items() if name not in MAY_BE_DONE and outbox.left() == 0} == set()
    for name, day in days.items():
        day.mend(outboxes[name])
        outboxes[name].stash(RECORDS, start=RECORDS)
    for name, outbox in outboxes.items():
        wait_until(lambda outbox=outbox: outbox.left() == 0, within=30, doing=f"{name}: {errors(processes[name])}")


def outlives_a_broker_whose_disk_is_full(database: str, folder: Path, classpath: str, start: Start) -> None:
    """Its only log folder fails, and it ends itself. With room again it is started again, and all goes on."""
    folder = folder / "full"
    with (
        small_file_system(folder, 64 * MEGABYTE) as disk,
        EmbeddedKafka(folder / "kafka", classpath=classpath) as kafka,
    ):
        outbox = make_plain_outbox(database, bootstrap=kafka.bootstrap, topic="data")
        process = start(outbox)
        process.wait_for("progress", standing="leading")
        if disk is None:
            kafka.kill()
        else:
            fill(folder / "ballast")
        outbox.stash(RECORDS)
        says = "can't reach Kafka at .*Check bootstrap.servers"
        if disk is not None:
            wait_until(lambda: not runs(kafka), within=30, doing="waiting for the broker to give up")
        wait_until(
            lambda: any(re.search(says, error) for error in errors(process)), within=20, doing=str(process.events)
        )
        [seen] = watch({"": process}).values()
        assert seen.cpu < MOST_CPU
        assert seen.lines < MOST_LINES
        if disk is not None:
            (folder / "ballast").unlink()
        kafka.restart()
        wait_until(lambda: outbox.left() == 0, within=30, doing=str(errors(process)))
        assert outbox.by_key().keys() == {f"k{n}" for n in range(10)}
