"""Bad days: what happens to a harvester that runs, what it says of it, how quietly it waits, and how it goes on."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from secure.bad_days import (
    BAD_DAYS,
    LIKE_OTHERS,
    MAY_BE_DONE,
    RECORDS,
    BadDay,
    Disk,
    fill,
    no_room_to_mark,
    no_room_to_park,
    small_file_system,
)
from secure.conftest import MakeOutbox, SecureOutbox, Start
from support.harvesting import Outbox, Process, wait_until
from support.harvesting import make_outbox as make_plain_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.demo.embedded.process import ServerError
from airflow_outbox.demo.embedded.unprivileged import server_user
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.postgres.schema import grant_statements

WATCHED = 5.0
MOST_CPU = 0.5  # seconds while watched; a loop that waits for nothing takes them all
MOST_LINES = 20  # while watched; five of them are progress
MEGABYTE = 1024 * 1024


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


def said(process: Process) -> list[str]:
    """Its complaints: errors, and the causes of parked records."""
    errors = [event["error"] for event in process.events if event["event"] == "error"]
    parked = [why["reason"] for event in process.events if event["event"] == "parked" for why in event["reasons"]]
    return errors + parked


def waiting(outbox: Outbox) -> list[int]:
    """How many records are in the outbox, and how many are parked."""
    return [outbox.left(), int(outbox.query("SELECT count(*) FROM outbox_parked")[0][0])]


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


@pytest.mark.long  # twelve harvesters and a broker at once: 90 s of a processor
@pytest.mark.usefixtures("roles")
def test_bad_days(
    disks: list[Disk],
    make_outbox: MakeOutbox,
    start: Start,
    database: str,
    server_folder: Path,
    kafka_classpath: str,
    request: pytest.FixtureRequest,
) -> None:
    """All at once, each for an outbox of its own: each has to be watched for a while."""
    with ThreadPoolExecutor(1) as thread:
        broker = thread.submit(outlives_a_broker_whose_disk_is_full, database, server_folder, kafka_classpath, start)
        played = BAD_DAYS.keys() if request.config.getoption("--faults") == "long" else BAD_DAYS.keys() - LIKE_OTHERS
        outlives_what_is_mended({name: BAD_DAYS[name] for name in played}, make_outbox, start, disks)
        broker.result()


def outlives_what_is_mended(
    days: Mapping[str, BadDay], make_outbox: MakeOutbox, start: Start, disks: list[Disk]
) -> None:
    to_mark, to_park = disks
    days = {**days, "no room to mark": no_room_to_mark(to_mark), "no room to park": no_room_to_park(to_park)}
    outboxes = {name: make_outbox() for name in days}
    for name, outbox in outboxes.items():
        outbox.settings["delivery"] = days[name].delivery
        as_a_role(outbox)
    processes = {name: start(outbox) for name, outbox in outboxes.items()}
    for process in processes.values():
        process.wait_for("progress", standing="leading")
    for name, day in days.items():
        day.damage(outboxes[name])

    def silent() -> list[str]:
        return [
            name for name, day in days.items() if not any(re.search(day.says, text) for text in said(processes[name]))
        ]

    deadline = time.monotonic() + 90  # guards; how soon is not what this shows
    while (unsaid := silent()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {name: processes[name].events[-5:] for name in unsaid} == {}
    watched = watch(processes)
    assert {name: seen for name, seen in watched.items() if seen.cpu > MOST_CPU or seen.lines > MOST_LINES} == {}
    assert {name for name in days if processes[name].popen.poll() is not None} == set()
    assert {name for name in days.keys() - MAY_BE_DONE if waiting(outboxes[name]) == [0, 0]} == set()
    for name, day in days.items():
        day.mend(outboxes[name])
        outboxes[name].stash(RECORDS, start=RECORDS)

    def unmended() -> dict[str, list[int]]:
        left = {name: waiting(outbox) for name, outbox in outboxes.items()}
        return {name: counts for name, counts in left.items() if counts != [0, days[name].parked]}

    deadline = time.monotonic() + 60
    while (left := unmended()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert {name: [counts, *processes[name].events[-5:]] for name, counts in left.items()} == {}


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
            wait_until(lambda: not runs(kafka), doing="waiting for the broker to give up")
        wait_until(lambda: any(re.search(says, error) for error in said(process)), doing=str(process.events))
        [seen] = watch({"": process}).values()
        assert seen.cpu < MOST_CPU
        assert seen.lines < MOST_LINES
        if disk is not None:
            (folder / "ballast").unlink()
        kafka.restart()
        wait_until(lambda: outbox.left() == 0, doing=str(said(process)))
        assert outbox.by_key().keys() == {f"k{n}" for n in range(10)}
